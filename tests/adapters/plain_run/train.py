"""A small language model in a plain loop, as a user would write it.

`python plain_run/train.py RUN`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from spiketriage.train.adapters.loop import PlainJob, PlainLoop
from spiketriage.train.guarding.guard import Policy

VOCABULARY, WIDTH, NUM_STEPS = 64, 32, 20


class Rows(Dataset[dict[str, Tensor]]):
    """Rows of 17 tokens with a weight each, as files of the run hold them."""

    def __init__(self, run: Path) -> None:
        self.rows_NT = torch.from_numpy(np.load(run / "rows.npy"))
        self.weights_N = torch.from_numpy(np.load(run / "weights.npy"))

    def __len__(self) -> int:
        return len(self.weights_N)

    def __getitem__(self, at: int) -> dict[str, Tensor]:
        row_T = self.rows_NT[at]
        return {"input_ids": row_T[:-1], "labels": row_T[1:], "weight": self.weights_N[at]}


class Block(nn.Module):
    """A mixing layer with dropout, so that the generators matter."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 64),
            nn.Linear(64, WIDTH),
        )

    def forward(self, x_BTD: Tensor) -> Tensor:
        shifted_BTD = x_BTD + F.pad(x_BTD, (0, 0, 1, 0))[:, :-1]
        return x_BTD + F.dropout(
            self.down(F.gelu(self.up(self.norm(shifted_BTD)))), 0.1, self.training
        )


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, inputs_BT: Tensor) -> Tensor:
        x_BTD = self.embed(inputs_BT)
        for block in self.blocks:
            x_BTD = block(x_BTD)
        return self.head(x_BTD)


def train(loop: PlainLoop) -> None:
    """Build everything, then the loop."""
    torch.manual_seed(1)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    loader = DataLoader(Rows(loop.run), batch_size=8, shuffle=True)
    loop.take(
        model=model,
        optimizer=optimizer,
        loader=loader,
        scheduler=scheduler,
        num_micro=2,
        max_norm=1.0,
    )
    torch.manual_seed(2)
    for step in loop.steps(NUM_STEPS):
        for batch in step.batches:
            losses_BT = F.cross_entropy(
                model(batch["input_ids"]).transpose(1, 2), batch["labels"], reduction="none"
            )
            losses_BT = losses_BT * batch["weight"][:, None]
            step.loss(losses_BT.sum(), losses_BT.numel(), per_sample_B=losses_BT.mean(1))
            (losses_BT.mean() / 2).backward()
        if step.may_update():
            optimizer.step()
            step.updated()
            scheduler.step()
        optimizer.zero_grad()


job = PlainJob(train, policy=Policy(max_repeats=3), save_every=1, budget_share=None)
factory = job.harness

if __name__ == "__main__":
    job.train(Path(sys.argv[1]))
