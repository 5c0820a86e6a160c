"""Whether the code of a run may be imported: `--trust`, or one question to the person at hand.

This module asks and shows; it never remembers an answer, and a pipe is never asked.
"""

from __future__ import annotations

import sys
from pathlib import Path

from spiketriage.errors import SpiketriageError
from spiketriage.foreign_text import printable


def may_import(run: Path, *, is_granted: bool, as_json: bool) -> bool:
    """Whether the person at the terminal lets the code of `run` be imported, now.

    False where nobody can be asked or nothing has to be: what was trusted before counts all the
    same.
    """
    if is_granted or as_json or not _is_terminal():
        return is_granted
    question = _question(run)
    if not question:
        return False
    sys.stderr.write(f"{question}Import it, as you? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _question(run: Path) -> str:
    """What would be imported, where, and why that matters; empty where there is nothing to ask."""
    from spiketriage.diagnosis import trust
    from spiketriage.nouns.listing import counted, listed
    from spiketriage.readers.settings import read_settings

    try:
        settings = read_settings(run)
        if not settings.harness:
            return ""
        code = trust.code_of(settings)
    except SpiketriageError:
        return ""  # the command says it, in its own place
    if trust.is_remembered(code):
        return ""
    folders = listed([str(folder) for folder in code.folders])
    return (
        f"Replaying this run imports its own code: {printable(settings.harness)}, "
        f"{counted(code.num_files, 'file')} in {printable(folders)}.\n"
        "Whoever wrote it, or the run's checkpoints, can then do here whatever you can.\n"
        "You are asked once for each run, and again when its code has changed.\n"
    )


def _is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
