"""Make one rehearsal run: two real processes that train, crash, restart and finish.

Nothing that this module leaves in the run folder, the environment or a process argument names the
fault.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from spiketriage.diagnosis import trust
from spiketriage.diagnosis.leash import run_leashed, torchrun
from spiketriage.errors import Exit, RefusedError, TrialError
from spiketriage.nouns.incident import StepResult
from spiketriage.practice.rehearsal import entry, staging, trainer
from spiketriage.practice.rehearsal.catalogue import Fault, load_fault
from spiketriage.readers.settings import read_settings

NEVER = -1
ATTEMPT_LIMIT_S = 900


def run(
    *, fault: str, seed: int, out: Path, stabilizers: Sequence[str], argv: Sequence[str]
) -> StepResult:
    """Rehearse: a complete run with `fault` at `out`, with `stabilizers` beside the trainer's own.

    Raises:
        UsageError: no such fault or stabilizer. RefusedError: `out` is not empty. TrialError: a
        process failed.
    """
    make(load_fault(fault), seed, out, stabilizers)
    with suppress(OSError):  # without a folder of one's own, triage asks about our code too
        trust.remember(trust.code_of(read_settings(out)))
    return StepResult(
        incident="",
        exit_code=Exit.DONE,
        verdict="rehearsed",
        lines=(f"a run of {staging.NUM_STEPS} steps on {staging.NUM_RANKS} ranks lies in {out}",),
        data={"run": str(out), "seed": seed, "num_steps": staging.NUM_STEPS},
        next_commands=(f"spiketriage triage {out}",),
    )


def make(fault: Fault, seed: int, out: Path, stabilizers: Sequence[str] = ()) -> staging.Staging:
    """Write and execute the run; returns the stage, so that a score can compare."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RefusedError(
            f"{out} exists and is not empty", hint="give --out a folder that does not exist yet"
        )
    stage = staging.prepare(seed)
    stage.config = replace(stage.config, stabilizers=tuple(dict.fromkeys(stabilizers)))
    fault.plant(stage)
    # Built under another name and renamed at the end: a killed rehearsal never looks like a run.
    unfinished = out.resolve().with_name(f"{out.resolve().name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    _rehearse(fault, stage, unfinished)
    unfinished.replace(out.resolve())
    return stage


def _rehearse(fault: Fault, stage: staging.Staging, out: Path) -> None:
    """Both attempts of the run, in the folder `out`."""
    staging.write_data(stage, out / "data")
    (out / "config.json").write_text(staging.config_text(stage.config), encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="stage-") as folder:
        wings = Path(folder)
        shutil.copyfile(entry.__file__, wings / "entry.py")
        _deploy(out, "r1", [], stage)
        _attempt(out, wings, {"crash_step": stage.crash_step, "arguments": {}}, "r1", number=0)
        _forget_after(out / "checkpoints", stage.restart_step)
        staging.let_rot(stage, out / "data")
        _deploy(out, "r2", [staging.harmless_edit(stage.chooser), *stage.edits], stage)
        if stage.hook_arguments is not None:
            shutil.copyfile(fault.path, wings / "hook.py")
        _attempt(
            out,
            wings,
            {"crash_step": NEVER, "arguments": stage.hook_arguments or {}},
            "r2",
            number=1,
        )


def _deploy(out: Path, release: str, edits: list[staging.Edit], stage: staging.Staging) -> None:
    source = Path(trainer.__file__).parent
    target = out / "code" / release / "trainer"
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    staging.apply_edits(edits, target)
    run_id = f"rehearsal-{stage.seed}"
    (out / "spiketriage.toml").write_text(staging.settings_text(run_id, release), encoding="utf-8")


def _attempt(out: Path, wings: Path, fate: Mapping[str, Any], release: str, *, number: int) -> None:
    """One start of the run; the first is meant to die at its crash step."""
    (wings / "fate.json").write_text(
        json.dumps({**fate, "code": str(out / "code" / release)}), encoding="utf-8"
    )
    (out / "logs").mkdir(exist_ok=True)
    log = out / "logs" / f"attempt-{number}.log"
    processes = torchrun(staging.NUM_RANKS, str(wings / "entry.py"), "--folder", str(out))
    exit_code = run_leashed(processes, log, limit_s=ATTEMPT_LIMIT_S)
    planned = fate["crash_step"] == NEVER or any((out / "checkpoints").glob("step-*/COMPLETE"))
    if (exit_code == 0) != (fate["crash_step"] == NEVER) or not planned:
        raise TrialError(
            f"attempt {number} of the rehearsal ended with exit code {exit_code}; its log is {log}",
            hint=f"tail -n 40 {log}",
        )


def _forget_after(generations_folder: Path, step: int) -> None:
    """Delete generations after `step`, from which the run restarts: a late crash leaves some."""
    for folder in generations_folder.glob("step-*"):
        if int(folder.name.removeprefix("step-")) > step:
            shutil.rmtree(folder)
