"""Which attempt and which rank a log file belongs to, by the names that torchrun and srun give.

This module never opens a file and never guesses: a name that says nothing gives None.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_ATTEMPT = re.compile(r"attempt_(\d{1,6})\Z")
_RANK = re.compile(r"\d{1,7}\Z")
_STREAMS = ("stdout.log", "stderr.log")
_SLURM = re.compile(r"slurm-(?P<job>\d{1,12}(?:[_.]\d+)*)[_-](?P<task>\d{1,7})\.(?:out|err|log)\Z")
_NAMED = re.compile(r"(?:\A|[_.-])rank[_-]?(?P<rank>\d{1,7})(?=[_.-]|\Z)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What the path of a log says; `notion` says which kind of rank it is."""

    attempt: int | None = None
    rank: int | None = None
    notion: str = ""


def placement(path: Path) -> Placement:
    """The attempt and the rank that the path of a log names.

    torchrun: `<log_dir>/<run_id>/attempt_<n>/<local_rank>/{stdout,stderr}.log`; srun:
    `slurm-<job>_<task>.out`.
    """
    if path.name in _STREAMS and _RANK.match(path.parent.name):
        attempt = _ATTEMPT.match(path.parent.parent.name)
        if attempt:
            return Placement(
                attempt=int(attempt[1]),
                rank=int(path.parent.name),
                notion="the folder's number (torchrun's local rank)",
            )
    slurm = _SLURM.match(path.name)
    if slurm:
        return Placement(
            rank=int(slurm["task"]),
            notion="the file's number (srun's task, or the index in a job array)",
        )
    named = _NAMED.search(path.name)
    if named:
        return Placement(rank=int(named["rank"]), notion="the file's name")
    return Placement()
