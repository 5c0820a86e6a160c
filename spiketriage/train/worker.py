"""The trial worker.

One rank that executes the trials of a launch and records their chains in the production format.

Started by torchrun as `-m spiketriage.train.worker LAUNCH.json`. It never writes outside the trials
folder and never decides what a result means.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from spiketriage import durable
from spiketriage.digests import of_file
from spiketriage.errors import StepNotTakenError, UsageError
from spiketriage.train.from_source import import_from
from spiketriage.train.harness import Context, Harness, Overrides
from spiketriage.train.recording.recorder import Recorder
from spiketriage.wire import trial as wire
from spiketriage.wire.trial import Launch, Trial


@dataclass(slots=True)
class Done:
    """What became of one trial; goes into `done.json`, with the digest of every rank's chain."""

    key: str
    num_steps_executed: int = 0
    wall_s: float = 0.0
    not_testable: str = ""
    effective: dict[str, Any] = field(default_factory=dict)
    chains: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Station:
    """One rank's working place: the harness, where chains go, and the steps executed so far."""

    launch: Launch
    harness: Harness
    rank: int
    world_size: int
    num_steps: int = 0

    def chain(self, trial: Trial) -> Path:
        """File of this rank's chain of `trial`."""
        return Path(self.launch.trials_folder) / trial.key / f"rank-{self.rank:05d}.chain"

    def prefix(self, trial: Trial) -> Path:
        """Chain of the steps that lead to a probe's state: proof that they repeat production."""
        return self.chain(trial).with_name(f"prefix.rank-{self.rank:05d}.chain")

    def recorder(self, trial: Trial) -> Recorder:
        """A fresh chain file for `trial`."""
        identity = self.harness.environment()
        path = self.chain(trial)
        return Recorder(
            Path(), rank=self.rank, identity=identity, path=path, budget_share=None, ring_slots=0
        )

    def ids(self, trial: Trial, step: int) -> Any:
        """Production's own batch name for `step`, when the trial brings it; else the harness's."""
        brought = trial.ids.get(str(self.rank), {})
        if str(step) in brought:
            return brought.get(str(step))
        return self.harness.ids(step)


def run_group(station: Station, trials: Sequence[Trial]) -> list[Done]:
    """Execute trials that start from the same generation through the same loader.

    They share what they can: probes run where their state is passed, and the trial that goes
    furthest carries the shared steps. Every repeat, and every second path, loads afresh.
    """
    probes = [trial for trial in trials if trial.kind == "probe"]
    replays = sorted(
        (trial for trial in trials if trial.kind == "replay"), key=lambda trial: trial.repeat
    )
    done: list[Done] = []
    first = replays[0] if replays else None
    if first is not None or probes:
        done += _run_path(station, first, probes)
    for trial in replays[1:]:
        done += _run_path(station, trial, [])
    return done


def _run_path(station: Station, replay: Trial | None, probes: Sequence[Trial]) -> list[Done]:
    factors = (replay or probes[0]).factors
    wanted = sorted({probe.factors.advance_to for probe in probes})
    skipped = factors.skipped if replay is not None else None
    if skipped is not None and wanted and wanted[-1] >= skipped:
        # A probe's state must not lie behind a skipped step: give the probes a path of their own.
        return _run_path(station, None, probes) + _run_path(station, replay, [])
    leader = replay or probes[0]
    started_s, before = time.perf_counter(), station.num_steps
    done: list[Done] = []
    generation = Path(station.launch.checkpoints) / factors.generation
    lead = Done(key=leader.key)
    last = max([*wanted, replay.last_step if replay is not None else 0])
    with Recorder(
        Path(),
        rank=station.rank,
        identity=station.harness.environment(),
        path=station.chain(leader) if replay is not None else station.prefix(leader),
        budget_share=None,
        ring_slots=0,
    ) as recorder:
        loaded = station.harness.load(generation, factors.loader)
        recorder.loaded(
            step=loaded.step,
            generation=loaded.generation,
            fields=loaded.digests.fields,
            tensors=loaded.digests.tensors,
        )
        for step in range(loaded.step, last + 1):
            done += [_probe(station, probe) for probe in probes if probe.factors.advance_to == step]
            if step + 1 > last or step + 1 == skipped:
                continue
            try:
                station.harness.step(step + 1, recorder, station.ids(leader, step + 1))
            except StepNotTakenError as error:
                if skipped is None:
                    raise
                # Without the skipped step the loop may count an epoch's steps otherwise.
                lead.not_testable = f"without step {skipped} {error.message}"
                break
            station.num_steps += 1
    lead.num_steps_executed = station.num_steps - before - len(done)
    lead.wall_s = time.perf_counter() - started_s
    lead.effective = {"loader": factors.loader, "loaded_step": loaded.step, "skipped": skipped}
    if replay is None:
        done[0].num_steps_executed += lead.num_steps_executed
        return done
    return [lead, *done]


def _probe(station: Station, trial: Trial) -> Done:
    """One pass on the current state, under the trial's overrides; the state is left as it was."""
    started_s = time.perf_counter()
    done = Done(key=trial.key)
    overrides = Overrides(precision=trial.factors.precision, kernel=trial.factors.kernel)
    wanted = {f"{name}={value}" for name, value in _overridden(overrides).items()}
    missing = wanted - station.harness.capabilities()
    with station.recorder(trial) as recorder:
        if missing:
            done.not_testable = f"the harness cannot set {', '.join(sorted(missing))}"
        else:
            batch = station.harness.build(
                station.harness.read(station.ids(trial, trial.first_step))
            )
            with recorder.step(trial.first_step) as record:
                station.harness.forward_backward(batch, overrides, record)
            station.num_steps += 1
            done.num_steps_executed = 1
    done.wall_s = time.perf_counter() - started_s
    done.effective = {
        "precision": overrides.precision,
        "kernel": overrides.kernel,
        "batch": trial.factors.batch,
    }
    return done


def _overridden(overrides: Overrides) -> dict[str, str]:
    pairs = {"precision": overrides.precision, "kernel": overrides.kernel}
    return {name: value for name, value in pairs.items() if value != "deployed"}


def run_launch(launch: Launch, rank: int, world_size: int) -> None:
    """Execute every trial of `launch` on this rank; rank 0 marks each done when all are through."""
    code = Path(launch.python_path[0])
    import_from(launch.python_path)
    module_name, _, attribute = launch.harness.partition(":")
    factory = getattr(importlib.import_module(module_name), attribute, None)
    if factory is None:
        raise UsageError(f"harness {launch.harness!r}: {module_name} has no {attribute!r}")
    package = code / module_name.partition(".")[0]
    context = Context(
        run=Path(launch.run), code=package, rank=rank, world_size=world_size, device="cpu"
    )
    station = Station(launch=launch, harness=factory(context), rank=rank, world_size=world_size)

    def path_of(trial: Trial) -> tuple[str, str]:
        return trial.factors.generation, trial.factors.loader

    for _, group in groupby(sorted(launch.trials, key=path_of), key=path_of):
        for done in run_group(station, list(group)):
            dist.barrier()
            if rank == 0:
                _mark(launch, done)


def _mark(launch: Launch, done: Done) -> None:
    """Write `done.json` last, by rename: a trial without it never happened."""
    folder = Path(launch.trials_folder) / done.key
    done.chains = {path.name: of_file(path) for path in sorted(folder.glob("rank-*.chain"))}
    durable.write(folder / "done.json", json.dumps(asdict(done), indent=1).encode())


def main(argv: Sequence[str]) -> int:
    """Read the launch, join the process group, work."""
    launch = wire.launch_from_json(json.loads(Path(argv[0]).read_text(encoding="utf-8")))
    torch.set_num_threads(launch.num_threads)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    try:
        run_launch(launch, rank, world_size)
    except BaseException:
        # The rank's own words, kept beside the launch: torchrun's summary does not name the line.
        Path(f"{argv[0]}.rank-{rank:05d}.error").write_text(
            traceback.format_exc(), encoding="utf-8"
        )
        raise
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
