"""Talk while a step works: one line at a time on stderr, so that stdout stays the result.

Talk never stops a step: a closed or full stderr is ignored, and `SPIKETRIAGE_QUIET` silences it.
"""

from __future__ import annotations

import contextlib
import os
import sys

from spiketriage.foreign_text import printable


def say(text: str) -> None:
    """Print one line of progress on stderr, at once."""
    if os.environ.get("SPIKETRIAGE_QUIET"):
        return
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"{printable(text)}\n")
        sys.stderr.flush()
