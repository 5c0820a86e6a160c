"""A small language model in Lightning, as a user would write it.

`python lightning_run/train.py RUN`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from spiketriage.train.adapters.lightning import LightningJob, LightningLoop
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


class Model(LightningModule):
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

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> dict[str, Any]:
        losses_BT = F.cross_entropy(
            self(batch["input_ids"]).transpose(1, 2), batch["labels"], reduction="none"
        )
        losses_BT = losses_BT * batch["weight"][:, None]
        self.log("loss", losses_BT.mean())
        return {
            "loss": losses_BT.mean(),
            "loss_sum": losses_BT.sum(),
            "num_tokens": losses_BT.numel(),
            "per_sample": losses_BT.mean(1),
        }

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        self.log(
            "val_loss", F.cross_entropy(self(batch["input_ids"]).transpose(1, 2), batch["labels"])
        )

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(
            self.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1
        )
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min(1.0, (step + 1) / 10)
        )
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def train(loop: LightningLoop) -> None:
    """Build everything, then fit."""
    torch.manual_seed(1)
    trainer = Trainer(
        accelerator="cpu",
        max_steps=NUM_STEPS,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        default_root_dir=loop.run,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        logger=False,
    )
    loader = DataLoader(Rows(loop.run), batch_size=8, shuffle=True)
    loop.fit(trainer, Model(), loader, DataLoader(Rows(loop.run), batch_size=32))


job = LightningJob(train, policy=Policy(max_repeats=3), save_every=1, budget_share=None)
factory = job.harness

if __name__ == "__main__":
    job.train(Path(sys.argv[1]))
