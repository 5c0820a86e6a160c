"""Lightning: a run that goes on from any step boundary is the run that never stopped.

What cannot be replayed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from adapted import Adapted
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from spiketriage.errors import UsageError

pytest.importorskip("lightning")
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.callbacks.weight_averaging import WeightAveraging

from spiketriage.train.adapters.lightning import LightningJob, LightningLoop
from spiketriage.train.adapters.source import Source
from spiketriage.train.guarding.guard import Policy

# Lightning warns of its own and of a small machine's habits.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

ROWS, MICRO = 26, 4  # 7 micro-batches an epoch, 2 a step: steps 4 and 8 have one


class Module(LightningModule):
    """Batch statistics, dropout, two schedulers, a validation that draws from the generators."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Dropout(0.3), nn.GELU(), nn.Linear(12, 1)
        )

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, targets = batch
        loss = (self.net(inputs) - targets).square().mean()
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("noise", torch.rand(()))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        by_step = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[3, 6], gamma=0.5)
        by_epoch = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch)
        return [optimizer], [
            {"scheduler": by_step, "interval": "step"},
            {"scheduler": by_epoch, "interval": "epoch"},
        ]


class ByHand(Module):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


def job(
    max_steps: int,
    *,
    module: Callable[[], LightningModule] = Module,
    rotten: int | None = None,
    save_every: int | None = None,
    **settings: Any,
) -> LightningJob:
    """A job of that many steps, which saves at its end only.

    It rolls back where it meets the rotten row.
    """

    def train(loop: LightningLoop) -> None:
        torch.manual_seed(3)
        inputs = torch.randn(ROWS, 6)
        if rotten is not None:
            inputs[rotten] = torch.nan
        data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
        told = {
            "accumulate_grad_batches": 2,
            "gradient_clip_val": 0.5,
            "max_steps": max_steps,
        } | settings
        off = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        trainer = Trainer(accelerator="cpu", enable_model_summary=False, **off, **told)
        loop.fit(
            trainer,
            module(),
            DataLoader(data, batch_size=MICRO, shuffle=True),
            DataLoader(data, batch_size=13),
        )

    policy = None if rotten is None else Policy(nonfinite="rollback", max_repeats=9)
    return LightningJob(train, policy=policy, save_every=save_every or max_steps, budget_share=None)


def fields(run: Path, step: int) -> dict[str, str]:
    """Digests of the state that the generation of `step` holds."""
    manifest = json.loads((run / "checkpoints" / f"step-{step:06d}" / "MANIFEST.json").read_text())
    found: dict[str, str] = manifest["fields"]["rank-0"]
    return found


@pytest.mark.parametrize(
    ("stop", "settings"),
    [
        (2, {"val_check_interval": 2}),
        (4, {}),
        (5, {}),
    ],  # in the midst of an epoch, at its end, after its end
)
def test_a_run_that_was_ended_and_goes_on_is_the_run_that_never_ended(
    stop: int, settings: dict[str, Any], tmp_path: Path
) -> None:
    job(9, **settings).train(tmp_path / "whole")
    for last in (stop, 9):
        job(last, **settings).train(tmp_path / "parts")
    assert fields(tmp_path / "parts", 9) == fields(tmp_path / "whole", 9)


def test_a_rollback_leaves_the_end_of_an_epoch_out_and_the_next_epoch_begins_whole(
    tmp_path: Path,
) -> None:
    loader = DataLoader(TensorDataset(torch.zeros(ROWS)), batch_size=MICRO, shuffle=True)
    *_, last = Source(loader).names(0)
    assert len(last.keys) == ROWS - 6 * MICRO
    job(8, rotten=last.keys[0], save_every=1).train(tmp_path)
    first, *rest = Adapted(folder=tmp_path, rotten=-1).segments()
    assert (
        first.steps[-1].step,
        first.steps[-1].ids["at"],
        first.steps[-1].metrics["guard/action"],
    ) == (4, 6, 3)
    kept = {
        one.step: one.ids for one in (one for segment in (first, *rest) for one in segment.steps)
    }
    assert [(kept[step]["epoch"], kept[step]["at"]) for step in (3, 4)] == [(0, 4), (1, 0)]
    for ids in kept.values():
        assert len(ids["micros"]) == (1 if ids["at"] == 6 else 2)
        assert last.keys[0] not in [key for micro in ids["micros"] for key in micro]


def test_a_run_that_is_over_is_left_alone(tmp_path: Path) -> None:
    job(4).train(tmp_path / "run")
    before = {
        path: path.read_bytes()
        for path in (tmp_path / "run" / "checkpoints").rglob("*")
        if path.is_file()
    }
    job(4).train(tmp_path / "run")
    after = {
        path: path.read_bytes()
        for path in (tmp_path / "run" / "checkpoints").rglob("*")
        if path.is_file()
    }
    assert after == before


@pytest.mark.parametrize(
    ("why", "options"),
    [
        (
            "manual optimization",
            {"module": ByHand, "accumulate_grad_batches": 1, "gradient_clip_val": None},
        ),
        (
            "GradientAccumulationScheduler",
            {"callbacks": lambda: [GradientAccumulationScheduler({2: 4})]},
        ),
        ("WeightAveraging", {"callbacks": lambda: [WeightAveraging()]}),
        ("limit_train_batches", {"limit_train_batches": 3}),
        ("limit_train_batches", {"overfit_batches": 2}),
    ],
)
def test_what_cannot_be_replayed_is_refused_before_the_first_step(
    why: str, options: dict[str, Any], tmp_path: Path
) -> None:
    if "callbacks" in options:
        options = {"callbacks": options["callbacks"](), "accumulate_grad_batches": 1}
    with pytest.raises(SystemExit) as end:
        job(2, **options).train(tmp_path / "run")
    assert isinstance(end.value.__cause__, UsageError)
    assert why in end.value.__cause__.message
    assert not (tmp_path / "run" / "telemetry").exists()
