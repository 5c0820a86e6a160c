"""The faults that can be planted, by name or from a file outside the package.

A fault is one module with `NAME`, `CAUSE`, `ABOUT` and `plant(stage)`; this module never runs one.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from spiketriage.errors import Exit, UsageError
from spiketriage.nouns.incident import StepResult
from spiketriage.practice.rehearsal.faults import FAULTS
from spiketriage.practice.rehearsal.staging import Staging


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A loaded fault: `cause` is what the desk must name, or None for a control."""

    name: str
    cause: str | None
    about: str
    path: Path
    plant: Callable[[Staging], None]


def load_fault(name: str) -> Fault:
    """The fault called `name`, or the one in the file `name` when it ends in `.py`.

    Raises:
        UsageError: there is no such fault, or the file is not one.
    """
    if name.endswith(".py"):
        return _from_module(_load_file(Path(name)))
    for module in FAULTS:
        if name == module.NAME:
            return _from_module(module)
    known = ", ".join(module.NAME for module in FAULTS)
    raise UsageError(
        f"no fault is called {name!r}; known: {known}", hint="spiketriage rehearse list"
    )


def run(*, argv: Sequence[str]) -> StepResult:
    """List every fault with what it does."""
    faults = [_from_module(module) for module in FAULTS]
    width = max(len(fault.name) for fault in faults)
    return StepResult(
        incident="",
        exit_code=Exit.DONE,
        verdict="listed",
        lines=tuple(f"{fault.name:<{width}}  {fault.about}" for fault in faults),
        data={
            "faults": [
                {"name": fault.name, "cause": fault.cause, "about": fault.about} for fault in faults
            ]
        },
        next_commands=(
            f"spiketriage rehearse --fault {faults[0].name} --seed 1 --out rehearsal-run",
        ),
    )


def _load_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("outside_fault", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise UsageError(
            f"{path}: expected a Python file with NAME, CAUSE and plant(stage), found none"
        )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _from_module(module: ModuleType) -> Fault:
    missing = [name for name in ("NAME", "CAUSE", "plant") if not hasattr(module, name)]
    if missing or module.__file__ is None:
        raise UsageError(f"{module.__name__}: a fault needs {', '.join(missing) or 'a file'}")
    return Fault(
        name=module.NAME,
        cause=module.CAUSE,
        about=getattr(module, "ABOUT", ""),
        path=Path(module.__file__),
        plant=module.plant,
    )
