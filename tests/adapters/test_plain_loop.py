"""A plain loop: data that draws at random, workers, and a rollback, all the same run bit for bit.

And its mistakes.

The run as a user's script makes it, and what the desk says of it, stand in `test_frameworks.py`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from spiketriage.errors import UsageError
from spiketriage.nouns.telemetry import Segment, StepRecord
from spiketriage.readers.telemetry.stores.native import read_segment
from spiketriage.train.adapters.loop import PlainJob, PlainLoop, Step
from spiketriage.train.adapters.pausable import PausableLoop
from spiketriage.train.adapters.source import Source
from spiketriage.train.generations.rank_state import digest_state
from spiketriage.train.generations.retention import Retention
from spiketriage.train.guarding.guard import Policy
from spiketriage.train.harness import Context, Overrides
from spiketriage.train.recording.recorder import Recorder

pytestmark = pytest.mark.slow

ROWS, MICRO, NUM_MICRO = 26, 4, 2  # 7 micro-batches an epoch: every fourth step has one
ROTTEN = 5


def noisy(rows: list[tuple[Tensor, ...]]) -> tuple[Tensor, Tensor]:
    """A collation that draws from all three generators."""
    inputs = torch.stack([one for one, _ in rows])
    noise = torch.rand(inputs.shape) + random.random() + float(np.random.random())
    return inputs * noise, torch.stack([one for _, one in rows])


def job(
    num_steps: int,
    *,
    save_every: int = 2,
    policy: Policy | None = None,
    num_workers: int = 0,
    retention: Retention | None = None,
    is_frozen: bool = False,
    update: Callable[[Step], None] = Step.updated,
) -> PlainJob:
    """A job of that many steps.

    One row of its data is not a number where there is a policy for it.
    """

    def train(loop: PlainLoop) -> None:
        torch.manual_seed(3)
        inputs = torch.randn(ROWS, 6)
        targets = inputs.sum(1, keepdim=True)
        if policy is not None:
            targets[ROTTEN] = torch.nan
        model = nn.Sequential(
            nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Dropout(0.3), nn.GELU(), nn.Linear(12, 1)
        )
        model[0].requires_grad_(not is_frozen)
        trained = [one for one in model.parameters() if one.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=1e-2)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
        loader = DataLoader(
            TensorDataset(inputs, targets),
            batch_size=MICRO,
            shuffle=True,
            collate_fn=noisy,
            num_workers=num_workers,
        )
        loop.take(
            model=model,
            optimizer=optimizer,
            loader=loader,
            scheduler=scheduler,
            num_micro=NUM_MICRO,
        )
        for step in loop.steps(num_steps):
            for inputs_BC, targets_B1 in step.batches:
                losses = (model(inputs_BC) - targets_B1).square()
                losses.mean().backward()
                step.loss(losses.sum(), len(losses))
            if step.may_update():
                optimizer.step()
                update(step)
                scheduler.step()
            optimizer.zero_grad()

    return PlainJob(
        train, save_every=save_every, retention=retention, policy=policy, budget_share=None
    )


def fields(run: Path, step: int) -> dict[str, str]:
    """Digests of the state that the generation of `step` holds."""
    manifest = json.loads((run / "checkpoints" / f"step-{step:06d}" / "MANIFEST.json").read_text())
    found: dict[str, str] = manifest["fields"]["rank-0"]
    return found


def segments(run: Path) -> list[Segment]:
    return [read_segment(path) for path in sorted((run / "telemetry").glob("*.seg"))]


def replayed(
    of: PlainJob, run: Path, first: int, last: int, out: Path, *, probe: bool = False
) -> list[StepRecord]:
    """The steps as the harness executes them from the generation before `first`."""
    code = next((run / "code").glob("*/*"))
    harness = of.harness(Context(run=run, code=code, rank=0, world_size=1, device="cpu"))
    harness.load(run / "checkpoints" / f"step-{first - 1:06d}", "verified")
    identity = harness.environment()
    with Recorder(
        Path(), rank=0, identity=identity, path=out, budget_share=None, ring_slots=0
    ) as recorder:
        for step in range(first, last + 1):
            ids = harness.ids(step)
            if probe:
                with Recorder(
                    Path(), rank=0, identity=identity, path=out.with_suffix(f".{step}")
                ) as probes:
                    batch = harness.build(harness.read(harness.ids(first)))
                    with probes.step(step) as record:
                        harness.forward_backward(batch, Overrides(), record)
            harness.step(step, recorder, ids)
    if (run / "checkpoints" / f"step-{last:06d}").exists():
        held = digest_state(harness._session.state()).fields
        assert held == {
            **fields(run, last),
            "guard": held["guard"],
        }  # buffers, too, which no link shows
    return list(read_segment(out).steps)


def test_a_run_that_was_ended_and_goes_on_is_the_run_that_never_ended(tmp_path: Path) -> None:
    job(9, save_every=9).train(tmp_path / "whole")
    for last in (3, 4, 9):  # in the midst of an epoch, at its end
        job(last, save_every=last).train(tmp_path / "parts")
    assert fields(tmp_path / "parts", 9) == fields(tmp_path / "whole", 9)
    steps = [one for segment in segments(tmp_path / "parts") for one in segment.steps]
    assert [one.digests for one in steps] == [
        one.digests for one in segments(tmp_path / "whole")[0].steps
    ]
    assert [len(one.ids["micros"]) for one in steps] == [2, 2, 2, 1, 2, 2, 2, 1, 2]


def test_parameters_that_are_not_trained_are_saved_and_come_back(tmp_path: Path) -> None:
    job(8, is_frozen=True).train(tmp_path / "whole")
    job(4, is_frozen=True).train(tmp_path / "parts")
    job(8, is_frozen=True).train(tmp_path / "parts")
    assert fields(tmp_path / "parts", 8) == fields(tmp_path / "whole", 8)
    manifest = json.loads(
        (tmp_path / "whole" / "checkpoints" / "step-000008" / "MANIFEST.json").read_text()
    )
    assert "0.weight" in manifest["tensors"]["rank-0"]["params"]


def test_who_reads_the_data_changes_nothing(tmp_path: Path) -> None:
    job(6).train(tmp_path / "alone")
    job(6, num_workers=2).train(tmp_path / "workers")
    alone, workers = (segments(tmp_path / name)[0].steps for name in ("alone", "workers"))
    assert [one.digests for one in workers] == [one.digests for one in alone]
    assert [one.content for one in workers] == [one.content for one in alone]
    assert fields(tmp_path / "workers", 6) == fields(tmp_path / "alone", 6)


def test_the_training_draws_as_if_no_data_were_read(tmp_path: Path) -> None:
    job(5).train(tmp_path / "run")
    state = torch.get_rng_state()
    source = Source(DataLoader(TensorDataset(torch.arange(ROWS)), batch_size=4, shuffle=True))
    assert sum(1 for _ in source.epoch(0)) == 7
    assert torch.equal(torch.get_rng_state(), state)


def test_replays_and_probes_in_between_repeat_production_bit_for_bit(tmp_path: Path) -> None:
    job(9, save_every=1).train(tmp_path / "run")
    production = {one.step: one.digests for one in segments(tmp_path / "run")[0].steps}
    for name, probe in (("steps", False), ("probes", True)):
        found = replayed(job(10), tmp_path / "run", 3, 9, tmp_path / f"{name}.chain", probe=probe)
        assert [one.step for one in found] == list(range(3, 10))
        assert all(one.digests == production[one.step] for one in found)


def test_a_rollback_goes_on_as_the_run_that_never_met_what_it_leaves_out(tmp_path: Path) -> None:
    policy = Policy(nonfinite="rollback")
    job(8, policy=policy).train(tmp_path / "run")
    first, *later = segments(tmp_path / "run")
    bad = [one.step for one in first.steps if one.metrics["guard/skipped"]]
    assert len(bad) == 1
    assert first.steps[-1].step == bad[0]  # its record is the last of that segment, and it is there
    assert any(key == ROTTEN for micro in first.steps[-1].ids["micros"] for key in micro)
    names = json.loads((tmp_path / "run" / "left_out.json").read_text())
    (tmp_path / "clean").mkdir()
    (tmp_path / "clean" / "left_out.json").write_text(json.dumps(names))
    job(8, policy=policy).train(tmp_path / "clean")
    clean = {one.step: one.digests for one in segments(tmp_path / "clean")[0].steps}
    assert later[0].steps[0].step <= bad[0]
    production = {one.step: one.digests for segment in (first, *later) for one in segment.steps}
    assert production == clean
    last = later[-1].loads[0]
    assert "guard" not in last.fields  # it is meant to know more than the generation
    found = replayed(
        job(8, policy=policy), tmp_path / "run", last.step + 1, 8, tmp_path / "again.chain"
    )
    assert [one.digests for one in found] == [clean[step] for step in range(last.step + 1, 9)]


def test_old_generations_go(tmp_path: Path) -> None:
    rule = Retention(detection_delay_steps=3, keep_newest=1)
    job(12, save_every=2, policy=Policy(), retention=rule).train(tmp_path / "run")
    # 9 is the horizon at step 12: 10 and 12 are younger, 8 is the newest known-good one behind it
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == ["step-000008", "step-000010", "step-000012"]


def test_a_step_whose_update_nobody_told_of_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        job(2, update=lambda step: None).train(tmp_path / "run")
    assert end.value.code == UsageError.exit_code
    assert "updated()" in capsys.readouterr().err
    assert segments(tmp_path / "run")[0].steps == ()  # a step that raised leaves no record


def test_data_without_names_is_refused() -> None:
    class Endless(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(())

    with pytest.raises(UsageError, match="map-style"):
        Source(DataLoader(Endless(), batch_size=2))


@given(
    epoch=st.integers(0, 3),
    at=st.integers(0, 6),
    out=st.sets(st.integers(0, 6)),
    own=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_the_order_of_an_epoch_follows_from_its_number_alone(
    epoch: int, at: int, out: set[int], own: bool
) -> None:
    def source() -> Source:
        rows = TensorDataset(torch.arange(ROWS))
        sampler = (
            RandomSampler(rows, generator=torch.Generator().manual_seed(9))
            if own
            else RandomSampler(rows)
        )
        return Source(DataLoader(rows, batch_size=4, sampler=sampler))

    torch.manual_seed(at)  # the training's own place in its stream has nothing to do with it
    used = source()
    list(used.names(3 - epoch))  # nor has what was read before
    whole = list(source().names(epoch))
    part = list(used.names(epoch, at, frozenset(f"{epoch}:{place}" for place in out)))
    assert part == [one for one in whole if one.at >= at and one.at not in out]
    assert sorted(key for one in whole for key in one.keys) == list(range(ROWS))


def test_a_parked_loop_stands_still_until_it_is_let_go_and_tells_what_it_raised() -> None:
    seen: list[Any] = []

    def loop() -> None:
        try:
            for number in range(3):
                pausable.pause()
                seen.append((number, torch.is_grad_enabled()))
            raise KeyError("over")
        finally:
            seen.append("left")

    pausable = PausableLoop(loop)
    with torch.no_grad():
        pausable.resume()
        assert seen == []
        pausable.resume()
    assert seen == [(0, True)]
    pausable.end()
    assert seen == [(0, True), "left"]
    with pytest.raises(UsageError, match="no further step"):
        pausable.resume()
    pausable = PausableLoop(loop)
    for _ in range(3):
        pausable.resume()
    with pytest.raises(KeyError, match="over"):
        pausable.resume()
