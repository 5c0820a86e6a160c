"""Runs the real trainers once, and `freeze`, `hash` and `check` over damaged copies of what they leave.

The jobs of all selected tests start at once on two threads, since each of them waits for processes.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command_line import call, environment

HERE = Path(__file__).parent / "real_stacks"
BAD_STEP = 5
NEEDS = {"hf_trainer": "transformers", "accelerate": "accelerate", "lightning": "lightning"}
UNDER_TORCHRUN = ("fsdp2", "torchtitan_like")
_TORCHRUN = (
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node=2",
    "--role=rank",
    "--tee=3",
)
_ENV = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "PYTHONWARNINGS": "ignore",
}
Done = subprocess.CompletedProcess[str]
Damage = Callable[[Path], None]


def nothing(_: Path) -> None:
    """No damage."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A copy of a run: `damage` before the freeze, `then` after it."""

    stack: str
    damage: Damage = nothing
    then: Damage | None = None


@dataclass(frozen=True, kw_only=True)
class Told:
    """What the commands said.

    `again` is a second `hash`, where something changed after the freeze.
    """

    run: Path
    freeze: Done
    hash: Done
    check: Done
    again: Done | None

    @property
    def checked(self) -> dict[str, str]:
        """The lines of `check` that accuse, by the check's name."""
        words = (line.split(maxsplit=2) for line in self.check.stdout.splitlines())
        return {line[1]: line[2] for line in words if line[:1] in (["nonfinite"], ["differs"])}

    @property
    def codes(self) -> tuple[int, int, int]:
        """Exit codes of freeze, hash and check."""
        return self.freeze.returncode, self.hash.returncode, self.check.returncode


def on(stack: str, damage: Damage = nothing, *, then: Damage | None = None) -> Callable[[Any], Any]:
    """Say which copy a test is about."""

    def mark(function: Any) -> Any:
        function.case = Case(stack=stack, damage=damage, then=then)
        need = NEEDS.get(stack, "torch")
        return pytest.mark.skipif(
            importlib.util.find_spec(need) is None, reason=f"{need} is not installed"
        )(function)

    return mark


class Stacks:
    """The runs, each made when it is first asked for, and the cases over them."""

    def __init__(self, folder: Path, cases: Iterable[Case]) -> None:
        self._folder = folder
        self._locks = {stack: threading.Lock() for stack in (*NEEDS, *UNDER_TORCHRUN)}
        self._threads = ThreadPoolExecutor(max_workers=2)
        self._failed: dict[str, str] = {}
        self._futures: dict[int, Future[Told]] = {}
        for number, case in enumerate(_interleaved(cases)):
            self._futures[id(case)] = self._threads.submit(self._tell, number, case)

    def told(self, case: Case) -> Told:
        """What was said in a case."""
        return self._futures[id(case)].result(timeout=300)

    def close(self) -> None:
        """Wait for what still runs; begin nothing new."""
        self._threads.shutdown(cancel_futures=True)

    def _made(self, stack: str) -> Path:
        with self._locks[stack]:
            run = self._folder / "made" / stack
            if stack in self._failed:
                raise RuntimeError(f"{stack} failed before: {self._failed[stack]}")
            if not run.exists():
                self._failed[stack] = "see the first test of it"
                _make(stack, run)
                del self._failed[stack]
            return run

    def _tell(self, number: int, case: Case) -> Told:
        run = self._folder / str(number) / case.stack
        shutil.copytree(self._made(case.stack), run)
        case.damage(run)
        frozen = _call("freeze", run)
        if case.then is not None:
            case.then(run)
        hashed = _call("hash", run)
        again = _call("hash", run) if case.then is not None else None
        return Told(run=run, freeze=frozen, hash=hashed, again=again, check=_call("check", run))


def _interleaved(cases: Iterable[Case]) -> list[Case]:
    """The cases of different stacks in turn, so that no thread waits for the run that the other one makes."""
    by_stack: dict[str, list[Case]] = {}
    for case in cases:
        by_stack.setdefault(case.stack, []).append(case)
    longest = max(map(len, by_stack.values()), default=0)
    return [own[place] for place in range(longest) for own in by_stack.values() if place < len(own)]


def _call(command: str, run: Path) -> Done:
    return call(command, str(run), cwd=run.parent)


def _make(stack: str, run: Path) -> None:
    draft = run.with_suffix(".draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    launcher = _TORCHRUN if stack in UNDER_TORCHRUN else ()
    script = HERE / f"{stack}_run.py"
    words = [sys.executable, *launcher, str(script), str(draft), "--bad-step", str(BAD_STEP)]
    done = subprocess.run(
        words,
        env={**environment(), **_ENV},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if stack == "torchtitan_like":
        (draft / "slurm-4711.out").write_text(done.stdout)
    draft.rename(run)
