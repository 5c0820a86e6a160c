"""The event sources that can be read.

This module never opens a file: each source has a file of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, cast

from spiketriage.nouns.telemetry import EventFacts
from spiketriage.readers.events import (
    fabric_manager,
    flight_recorder,
    job_log,
    kernel_log,
    nccl_log,
    nvidia_smi,
    nvidia_smi_nvlink,
    slurm,
    tensor_hashes,
    torchrun_error,
)
from spiketriage.readers.look import Format


class EventSource(Format, Protocol):
    """A format of system evidence."""

    def read(self, path: Path, /) -> EventFacts:
        """Every event of the file; what is damaged is in `problems`.

        Raises:
            EvidenceError: it cannot be read at all, or is not of this format.
        """
        ...


SOURCES: tuple[EventSource, ...] = cast(
    "tuple[EventSource, ...]",
    (
        flight_recorder,
        tensor_hashes,
        nvidia_smi,
        nvidia_smi_nvlink,
        fabric_manager,
        torchrun_error,
        slurm,
        kernel_log,
        nccl_log,
        job_log,
    ),
)
