"""The telemetry formats that can be read, in order of precedence.

This module never opens a file: each format has a file of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, cast

from spiketriage.facts import LogFacts
from spiketriage.readers.look import Format
from spiketriage.readers.telemetry.names import Names


class LogFormat(Format, Protocol):
    """A telemetry format."""

    def read(self, path: Path, names: Names, /) -> LogFacts:
        """Every series of the source; what is damaged is in `problems`.

        Raises:
            EvidenceError: the source cannot be read at all, or is not of this format.
        """
        ...


FORMATS: tuple[LogFormat, ...] = cast("tuple[LogFormat, ...]", ())
