"""A process that trains by an adapter, then drives its harness, and leaves chains and exit codes behind for a test.

`python adapter_child.py SCRIPT RUN OUT`: trains until the guard stops it, loses the generations
from step 9 on, trains again as a new process would, and prints both exit codes; then loads, probes
and steps as a trial worker does, into chains under OUT.
"""

from __future__ import annotations

import importlib
import json
import runpy
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

LOST_FROM = 9
LOADED, LAST = 5, 9  # the generation of the drive, and its last step


def train(script: str, run: Path) -> None:
    codes = []
    for _ in range(2):
        sys.argv = [script, str(run)]
        try:
            runpy.run_path(script, run_name="__main__")
            codes.append(0)
        except SystemExit as end:
            codes.append(end.code)
        if len(codes) == 1:
            for folder in (run / "checkpoints").glob("step-*"):
                if int(folder.name[-6:]) >= LOST_FROM:
                    shutil.rmtree(folder)
    print(json.dumps(codes), flush=True)


def harness_of(run: Path) -> Any:
    from spiketriage.train.harness import Context

    told = tomllib.loads((run / "spiketriage.toml").read_text())["trainer"]
    folder = run / told["python_path"][0]
    sys.path.insert(0, str(folder))
    module, _, name = told["harness"].partition(":")
    factory = getattr(importlib.import_module(module), name)
    code = folder / module.partition(".")[0]
    return factory(Context(run=run, code=code, rank=0, world_size=1, device="cpu"))


def drive(run: Path, out: Path) -> None:
    """Steps without a probe, and again with a probe before each one.

    Through the other loader the second time.
    """
    from spiketriage.train.harness import Overrides
    from spiketriage.train.recording.recorder import Recorder

    harness = harness_of(run)
    generation = run / "checkpoints" / f"step-{LOADED:06d}"
    told: dict[str, Any] = {"capabilities": sorted(harness.capabilities()), "loads": [], "lr": {}}

    def recorder(name: str) -> Any:
        identity = harness.environment()
        return Recorder(
            Path(), rank=0, identity=identity, path=out / name, budget_share=None, ring_slots=0
        )

    for loader in ("deployed", "verified"):
        loaded = harness.load(generation, loader)
        told["loads"].append([loaded.step, dict(loaded.digests.fields)])
        with (
            recorder(f"steps-{loader}.chain") as chain,
            recorder(f"probes-{loader}.chain") as probes,
        ):
            for step in range(LOADED + 1, LAST + 1):
                ids = harness.ids(step)
                if loader == "verified":
                    batch = harness.build(harness.read(ids))
                    with probes.step(step) as record:
                        harness.forward_backward(batch, Overrides(), record)
                told["lr"][step] = harness.lr(step)
                harness.step(step, chain, ids)
    (out / "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    _, told_script, told_run, told_out = sys.argv
    train(told_script, Path(told_run))
    drive(Path(told_run), Path(told_out))
