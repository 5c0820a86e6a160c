"""At the restart the optimizer's moments of an older generation are loaded, once.

A later load is right.

The plant acts inside the restarting process, as a stale cache would; files and code are intact.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from spiketriage.practice.rehearsal.staging import Staging

NAME = "stale-optimizer"
CAUSE = "stale-optimizer"
ABOUT = "moments of an older generation are loaded once, at the restart"


def plant(stage: Staging) -> None:
    """Choose how many generations the moments are too old."""
    age = stage.chooser.choice((2, 3, 5)) * stage.config.save_every
    stage.hook(age_steps=age)


def before_load(trainer: Any, generation: Path, *, age_steps: int) -> Path:
    """Let this load take its moments from `age_steps` earlier."""
    module = sys.modules[type(trainer).__module__]
    restore = module.__dict__["restore"]
    step = int(generation.name.removeprefix("step-")) - age_steps

    def stale(path: Path) -> Any:
        module.__dict__["restore"] = restore
        older = restore(path.parent / f"step-{step:06d}")
        return replace(restore(path), optimizer=older.optimizer)

    module.__dict__["restore"] = stale
    return generation
