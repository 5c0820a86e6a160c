"""Reads a job's output for what trainer, launcher, scheduler, NCCL and kernel left there.

This module never reads metrics: that is what the telemetry formats are for.
"""

from __future__ import annotations

from pathlib import Path

from spiketriage.nouns.telemetry import EventFacts
from spiketriage.readers.events import kernel_log, nccl_log, slurm, torchrun_error, trainer_lines
from spiketriage.readers.events.text_lines import Scanner, TextLine, head_lines, scan, tail_lines
from spiketriage.readers.look import Look

NAME = "job-log"
TELLS = (
    "Exceptions and last words of a trainer, and what NCCL, torchrun, Slurm and the kernel wrote "
    "into a job's own output."
)
CANNOT = "Whose line is whose, where a launcher mixed processes without a prefix."
_SUFFIXES = (".log", ".out", ".err", ".txt")


def claims(look: Look, /) -> float:
    """Convinced by a line of a trainer, launcher, scheduler or driver at either end of the file.

    Else any text could be a job's output.
    """
    lines = head_lines(look)
    if not lines or b"\0" in look.head:
        return 0.0
    lines = (*lines, *tail_lines(look))
    for scanner in _scanners(""):
        for text in lines:
            if list(scanner.feed(TextLine(number=0, text=text, source=""))):
                return 0.55
    if look.path.suffix in _SUFFIXES or "slurm-" in look.path.name:
        return 0.2
    return 0.05


def read(path: Path, /) -> EventFacts:
    """Every event of every kind of line.

    Raises:
        EvidenceError: it cannot be read.
    """
    return scan(path, NAME, _scanners(path.name))


def _scanners(source: str) -> tuple[Scanner, ...]:
    return (
        *nccl_log.scanners(source),
        *torchrun_error.scanners(),
        *slurm.scanners(),
        *kernel_log.scanners(source),
        *trainer_lines.scanners(),
    )
