"""Control: nothing is planted.

The run still crashes, restarts and carries its harmless change of code.

Nothing may be blamed.
"""

from __future__ import annotations

from spiketriage.practice.rehearsal.staging import Staging

NAME = "healthy"
CAUSE = None
ABOUT = "control: nothing is wrong"


def plant(stage: Staging) -> None:
    """Plant nothing."""
