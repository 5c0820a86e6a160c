"""The checkpoint layouts that can be read, the most specific first.

This module never opens a file: each layout has a file of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, cast

from spiketriage.facts import CheckpointFacts
from spiketriage.readers.look import Format


class Layout(Format, Protocol):
    """A checkpoint layout."""

    def read(self, path: Path, /) -> CheckpointFacts:
        """The checkpoint at `path` from its metadata; what is damaged is in `problems`.

        Raises:
            EvidenceError: it cannot be read at all, or is not of this layout.
        """
        ...


LAYOUTS: tuple[Layout, ...] = cast("tuple[Layout, ...]", ())
