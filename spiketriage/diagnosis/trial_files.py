"""The files of a trial: what they hash to, and whether they are still what was recorded of them.

This module never writes one, and never says what an answer means.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spiketriage.digests import of_file, sha256_of_file
from spiketriage.errors import EvidenceError

DONE = "done.json"  # written last, with the digest of every chain


def digests(trials: Path, key: str) -> dict[str, str]:
    """The SHA-256 of every file of a trial, and of the launch that it led, by path in `trials`."""
    seen = {}
    for path in sorted([*(trials / key).rglob("*"), *trials.glob(f"launch-{key}.*")]):
        if path.is_file():
            seen[path.relative_to(trials).as_posix()] = sha256_of_file(path)
    return seen


def chains(folder: Path, done: Mapping[str, Any]) -> list[Path]:
    """Every rank's chain, as the trial's own mark lists them: another file there is not its own."""
    return [folder / name for name in sorted(done["chains"])]


def is_recorded(trials: Path, key: str, recorded: Mapping[str, str]) -> bool:
    """Whether a command recorded the trial, and every file of it is still what it was then."""
    expected = _expected(key, recorded)
    return bool(expected) and _hold(trials, expected)


def is_done(trials: Path, key: str, recorded: Mapping[str, str]) -> bool:
    """Whether the trial came to its end and need not be executed again.

    A trial that no command recorded, because the desk was killed under it, answers for itself.
    """
    folder = trials / key
    if not _hold(trials, _expected(key, recorded)):
        return False
    try:
        stated = json.loads((folder / DONE).read_text(encoding="utf-8"))["chains"]
        if any(of_file(folder / name) != digest for name, digest in stated.items()):
            return False
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EvidenceError):
        return False
    return bool(stated)


def _expected(key: str, recorded: Mapping[str, str]) -> dict[str, str]:
    return {path: digest for path, digest in recorded.items() if path.startswith(f"{key}/")}


def _hold(trials: Path, expected: Mapping[str, str]) -> bool:
    try:
        return all(sha256_of_file(trials / path) == expected[path] for path in expected)
    except EvidenceError:
        return False
