"""Accelerate: two ranks replayed bit for bit, a run that goes on as if it had never stopped, what a loop may not do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from adapted import Adapted, child, rotten_steps, rows_with_rot, script
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from spiketriage.errors import UsageError

pytest.importorskip("accelerate")
from accelerate import Accelerator

from spiketriage.train.adapters.accelerate import AccelerateJob, AccelerateLoop

pytestmark = pytest.mark.slow

ROTTEN = (
    13  # of 80 rows; 5 micro-batches a rank and epoch, so that the third step of an epoch has one
)


def test_two_ranks_agree_on_every_skip_and_are_replayed_bit_for_bit(tmp_path: Path) -> None:
    run = rows_with_rot(tmp_path / "run", num_rows=80, rotten=ROTTEN)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = child(*launcher, str(script("accelerate")), str(run.folder))
    assert "exitcode  : 10" in done.stderr
    ranks = [{one.step: one for one in segment.steps} for segment in run.segments()]
    assert [rotten_steps(steps, ROTTEN) for steps in ranks] == [[6], [3, 8]] == expected_steps()
    for steps in ranks:
        assert list(steps) == list(range(1, 9))
        assert [step for step, one in steps.items() if one.metrics["guard/skipped"]] == [3, 6, 8]
    assert (
        done.stderr.count("step 8: nonfinite, seen by rank 0, number 3 without progress: stop") == 2
    )  # by its sum
    assert run.desk("freeze")["ok"]
    replayed = run.desk("replay", "--last", "8")
    assert (replayed["exit"], replayed["verdict"]) == (0, "agrees"), replayed
    assert replayed["data"]["steps_executed"] == 6  # 3 to 8, over two ends of epochs


def expected_steps() -> list[list[int]]:
    """Steps in which each rank meets the rotten row.

    Micro-batches of a shuffled epoch in turn, two a step.
    """
    found: list[list[int]] = [[], []]
    for epoch in range(3):
        order = torch.randperm(80, generator=torch.Generator().manual_seed(epoch)).tolist()
        number, rank = divmod(order.index(ROTTEN) // 8, 2)
        if (step := 3 * epoch + number // 2 + 1) <= 8:
            found[rank].append(step)
    return found


def job(
    num_steps: int,
    *,
    hear: Callable[[Tensor, Tensor], None] = lambda loss, labels: None,
    clip: float = 0.5,
    is_prepared: bool = True,
) -> AccelerateJob:
    """A job of that many steps over 26 rows, 7 micro-batches an epoch and 2 a step.

    It tells no loss but its mean.
    """

    def train(loop: AccelerateLoop) -> None:
        torch.manual_seed(3)
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        labels = torch.arange(26) % 3
        data = TensorDataset(
            torch.randn(26, 6), labels.masked_fill(torch.arange(26) % 5 == 0, -100)
        )
        own: Any = nn.Sequential(
            nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Dropout(0.3), nn.Linear(12, 3)
        )
        optimizer: Any = torch.optim.AdamW(own.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[3, 6], gamma=0.5)
        loader = DataLoader(data, batch_size=4, shuffle=True)
        model, wrapped, loader, scheduler = accelerator.prepare(own, optimizer, loader, scheduler)
        loop.take(
            accelerator,
            model=model,
            optimizer=wrapped if is_prepared else optimizer,
            loader=loader,
            scheduler=scheduler,
            max_norm=0.5,
        )
        for batches in loop.epochs(num_steps):
            for inputs, labels in batches:
                with accelerator.accumulate(model):
                    loss = nn.functional.cross_entropy(model(inputs), labels)
                    hear(loss.detach(), labels)
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), clip)
                    wrapped.step()
                    scheduler.step()
                    wrapped.zero_grad()

    return AccelerateJob(train, save_every=num_steps, budget_share=None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    """Nine steps in one go."""
    run = tmp_path_factory.mktemp("whole")
    job(9).train(run)
    return Adapted(folder=run, rotten=-1)


@pytest.mark.parametrize("stop", [2, 4, 5])  # in the midst of an epoch, at its end, after its end
def test_a_run_that_was_ended_and_goes_on_is_the_run_that_never_ended(
    stop: int, whole: Adapted, tmp_path: Path
) -> None:
    for last in (stop, 9):
        job(last).train(tmp_path)
    assert Adapted(folder=tmp_path, rotten=-1).manifest(9)["fields"] == whole.manifest(9)["fields"]


def test_a_mean_is_told_as_the_sum_over_the_labels_that_count(tmp_path: Path) -> None:
    heard: list[tuple[Tensor, int]] = []
    job(
        4, hear=lambda loss, labels: heard.append((loss, sum(one >= 0 for one in labels.tolist())))
    ).train(tmp_path)
    steps = Adapted(folder=tmp_path, rotten=-1).segments()[0].steps
    told = [(one.metrics["loss/sum"], one.metrics["tokens/valid"]) for one in steps]
    micros = [heard[0:2], heard[2:4], heard[4:6], heard[6:7]]
    assert told == [
        (
            pytest.approx(sum(float(loss) * count for loss, count in step)),
            sum(count for _, count in step),
        )
        for step in micros
    ]


@pytest.mark.parametrize(
    ("why", "options"),
    [("accelerator.prepare", {"is_prepared": False}), ("clips to 0.7", {"clip": 0.7})],
)
def test_what_would_be_recorded_wrongly_is_refused(
    why: str, options: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as end:
        job(2, **options).train(tmp_path)
    assert isinstance(end.value.__cause__, UsageError)
    assert why in end.value.__cause__.message
