"""Process entry of a rehearsal: the deployed trainer and its fate, started by torchrun.

The fate (a crash step, a hook) comes from a file that is deleted after the run; replays never pass
through here.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def load_hook(path: Path) -> ModuleType:
    """The module at `path`."""
    spec = importlib.util.spec_from_file_location("stagehand", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def bend(trainer_class: Any, fate: dict[str, Any], hook: ModuleType | None) -> None:
    """Wrap the trainer's `step` and `load` so that the fate comes about."""
    step, load = trainer_class.step, trainer_class.load

    def fated_step(self: Any, number: int, *rest: Any, **named: Any) -> None:
        if number == fate["crash_step"]:
            os.kill(os.getpid(), signal.SIGKILL)
        if hook is not None and hasattr(hook, "before_step"):
            hook.before_step(self, number, **fate["arguments"])
        step(self, number, *rest, **named)

    def fated_load(self: Any, generation: Path, loader: str) -> Any:
        if hook is not None and hasattr(hook, "before_load"):
            generation = hook.before_load(self, generation, **fate["arguments"])
        return load(self, generation, loader)

    trainer_class.step, trainer_class.load = fated_step, fated_load


def start() -> None:
    """Run the deployed trainer's own `main`."""
    here = Path(__file__).resolve().parent
    fate = json.loads((here / "fate.json").read_text(encoding="utf-8"))
    sys.path.insert(0, fate["code"])
    trainer = importlib.import_module("trainer.trainer")
    if (here / "hook.py").exists():
        hook = load_hook(here / "hook.py")
    else:
        hook = None
    bend(trainer.Trainer, fate, hook)
    importlib.import_module("trainer.main").main()


if __name__ == "__main__":
    start()
