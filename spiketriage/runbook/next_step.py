"""Command lines to type next, with the run folder and the options as the person typed them.

This module never resolves a path: what was typed relative is printed relative.
"""

from __future__ import annotations

import shlex
from pathlib import Path


def command(
    step: str, run_folder: Path, incidents: Path | None, incident: str | None = None, *options: str
) -> str:
    """`spiketriage STEP RUN OPTIONS --incidents DIR --incident ID`, ready to be pasted."""
    if incidents is not None:
        elsewhere = ["--incidents", str(incidents)]
    else:
        elsewhere = []
    chosen = ["--incident", incident] if incident else []
    return shlex.join(["spiketriage", step, str(run_folder), *options, *elsewhere, *chosen])
