"""A small language model in a plain loop, as a user would write it: `python plain_run/train.py RUN`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from spiketriage.train.adapters.loop import PlainJob, PlainLoop
from spiketriage.train.guard import Policy

VOCABULARY, WIDTH, LENGTH = 64, 32, 16


class Block(nn.Module):
    """A mixing layer with dropout, so that the generators matter."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        shifted_BTD = x_BTD + F.pad(x_BTD, (0, 0, 1, 0))[:, :-1]
        return x_BTD + F.dropout(self.down(F.gelu(self.up(self.norm(shifted_BTD)))), 0.1, self.training)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, inputs_BT: torch.Tensor) -> torch.Tensor:
        x_BTD = self.embed(inputs_BT)
        for block in self.blocks:
            x_BTD = block(x_BTD)
        return self.head(x_BTD)


def rows() -> torch.Tensor:
    """85 rows in which each token follows from the one before: 11 micro-batches of 8, so an epoch ends in half a step."""
    generator = torch.Generator().manual_seed(3)
    first = torch.randint(0, VOCABULARY, (85, 1), generator=generator)
    return (first * 5 + torch.arange(LENGTH + 1) * 7) % VOCABULARY


def train(loop: PlainLoop) -> None:
    """Build everything, then the loop."""
    torch.manual_seed(1)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    loader = DataLoader(TensorDataset(rows()), batch_size=8, shuffle=True)
    loop.take(model=model, optimizer=optimizer, loader=loader, scheduler=scheduler, num_micro=2, max_norm=1.0)
    for step in loop.steps(60):
        for (tokens_BT,) in step.batches:
            logits_BTV = model(tokens_BT[:, :-1])
            loss_sum = F.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT[:, 1:].flatten(), reduction="sum")
            (loss_sum / (2 * tokens_BT[:, 1:].numel())).backward()
            step.loss(loss_sum, tokens_BT[:, 1:].numel())
        if step.may_update():
            optimizer.step()
            step.updated()
            scheduler.step()
        optimizer.zero_grad()


job = PlainJob(train, policy=Policy(), save_every=10, budget_share=None)
factory = job.harness

if __name__ == "__main__":
    job.train(Path(sys.argv[1]))
