"""A harness that somebody's settings name is imported only after trust, by every command.

A real run, whose code leaves a mark when it is imported; a terminal that answers.
"""

from __future__ import annotations

import os
import pty
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command_line import PROGRAM, ROOT, call
from rehearsed import Rehearsed

from spiketriage.incident import store

pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """A run that somebody sent, and the mark that its code leaves where it is imported."""

    folder: Path
    mark: Path

    def outcomes(self) -> list[str]:
        """What the journal says of every command, in order."""
        incident = store.find(self.folder, incidents=None, wanted=None)
        return [row.outcome for row in incident.dossier().journal]

    def trusted(self) -> list[str]:
        """What the journal says of the code that every command imported, in order."""
        incident = store.find(self.folder, incidents=None, wanted=None)
        return [row.trusted for row in incident.dossier().journal]


@pytest.fixture(scope="module")
def foreign(bitrot_run: Rehearsed, tmp_path_factory: pytest.TempPathFactory) -> Foreign:
    folder = tmp_path_factory.mktemp("sent")
    run, mark = folder / "run", folder / "imported"
    shutil.copytree(bitrot_run.folder, run, ignore=shutil.ignore_patterns(".spiketriage"))
    with (run / "code" / "r2" / "trainer" / "trainer.py").open("a") as code:
        code.write(f"\nopen({str(mark)!r}, 'w').close()\n")
    return Foreign(folder=run, mark=mark)


def test_a_pipe_is_refused_once_for_each_command_and_triage_still_says_what_files_say(
    foreign: Foreign,
) -> None:
    cwd = foreign.folder.parent
    triaged = call("triage", "run", cwd=cwd)
    assert triaged.returncode == 3
    assert "not replayed: the code of " in triaged.stdout
    assert "next: spiketriage triage run --trust" in triaged.stdout
    assert "shard-digests" in triaged.stdout  # what was found without a step is said all the same
    replayed = call("replay", "run", cwd=cwd)
    assert replayed.returncode == 3
    assert "was never trusted by you" in replayed.stderr
    assert "hint: spiketriage replay run --trust" in replayed.stderr
    assert not foreign.mark.exists()
    assert foreign.outcomes()[-1].startswith("NotTrustedError: the code of ")
    assert set(foreign.trusted()) == {""}


def test_a_terminal_is_asked_once_and_a_no_imports_nothing(foreign: Foreign) -> None:
    cwd = foreign.folder.parent
    call("freeze", "run", cwd=cwd)
    talk, exit_code = _answered(b"no\n", "replay", "run", cwd=cwd)
    assert ("Import it, as you? [y/N]" in talk, exit_code) == (True, 3)
    assert "trainer.trainer:factory, 30 files in " in talk
    assert not foreign.mark.exists()
    talk, exit_code = _answered(b"y\n", "replay", "run", cwd=cwd)
    assert ("Import it, as you? [y/N]" in talk, exit_code) == (True, 0)
    assert foreign.mark.exists()
    assert foreign.trusted()[-1].startswith("trainer.trainer:factory and 30 files (SHA-256 ")
    talk, exit_code = _answered(b"", "triage", "run", cwd=cwd)
    assert ("Import it, as you? [y/N]" in talk, exit_code) == (False, 0)


def test_code_that_changed_is_refused_until_it_is_trusted_again(foreign: Foreign) -> None:
    cwd = foreign.folder.parent
    call("freeze", "run", cwd=cwd)
    call("replay", "run", "--trust", cwd=cwd)
    foreign.mark.unlink()
    with (foreign.folder / "code" / "r2" / "trainer" / "trainer.py").open("a") as code:
        code.write("\n")
    again = ("replay", "run", "--repeats", "2")
    refused = call(*again, cwd=cwd)
    assert refused.returncode == 3
    assert "is no longer what you trusted at " in refused.stderr
    assert not foreign.mark.exists()
    assert call(*again, "--trust", cwd=cwd).returncode == 0
    assert foreign.mark.exists()


def _answered(answer: bytes, *words: str, cwd: Path) -> tuple[str, int]:
    """What a command says on a terminal whose person types `answer`, and its exit code."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.environ["PYTHONPATH"] = str(ROOT)
        os.execv(sys.executable, [sys.executable, "-c", PROGRAM, *words])
    os.write(terminal, answer)
    talk = b""
    while part := _read(terminal):
        talk += part
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    return talk.decode(), os.waitstatus_to_exitcode(status)


def _read(terminal: int) -> Any:
    try:
        return os.read(terminal, 4096)
    except OSError:  # a terminal whose process has ended
        return b""
