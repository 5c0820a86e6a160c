"""A loop that is given its loss as a function: what it records is replayed bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from spiketriage.train.adapters.closure import ClosureJob, ClosureLoop
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from spiketriage.readers.telemetry.stores.native import read_segment
from spiketriage.train.harness import Context
from spiketriage.train.recording.recorder import Recorder

pytestmark = pytest.mark.slow


def squares(model: nn.Module, batch: Any) -> tuple[Tensor, int]:
    inputs_BC, targets_B1 = batch
    losses_B1 = (model(inputs_BC) - targets_B1).square()
    return losses_B1.sum(), len(losses_B1)


def train(loop: ClosureLoop) -> None:
    torch.manual_seed(3)
    inputs_NC = torch.randn(12, 4)
    model = nn.Linear(4, 1)
    loop.run(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
        loader=DataLoader(TensorDataset(inputs_NC, inputs_NC.sum(1, keepdim=True)), batch_size=3),
        loss=squares,
        num_steps=4,
    )


def test_what_it_recorded_is_replayed_bit_for_bit(tmp_path: Path) -> None:
    job = ClosureJob(train, save_every=2, budget_share=None)
    run = tmp_path / "run"
    job.train(run)
    (recorded,) = [read_segment(path).steps for path in (run / "telemetry").glob("*.seg")]
    assert [record.step for record in recorded] == [1, 2, 3, 4]
    code = next((run / "code").glob("*/*"))
    harness = job.harness(Context(run=run, code=code, rank=0, world_size=1, device="cpu"))
    harness.load(run / "checkpoints" / "step-000002", "verified")
    out = tmp_path / "replayed.seg"
    with Recorder(
        Path(), rank=0, identity=harness.environment(), path=out, budget_share=None, ring_slots=0
    ) as recorder:
        for step in (3, 4):
            harness.step(step, recorder, harness.ids(step))
    replayed = read_segment(out).steps
    assert [record.digests for record in replayed] == [record.digests for record in recorded[2:]]
