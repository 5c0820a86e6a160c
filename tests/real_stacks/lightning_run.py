"""A run of Lightning with CSVLogger and a checkpoint every two steps, whose loss is NaN from step `--bad-step` on.

Run as `python lightning_run.py OUTPUT [--bad-step K]`: `OUTPUT/logs/version_0/metrics.csv`,
`OUTPUT/checkpoints`.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger


class Model(LightningModule):
    """A small regression."""

    def __init__(self, bad_step: int) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 1)
        )

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        """One step; `global_step` counts the finished ones."""
        loss = self.layers(batch[0]).square().mean()
        if self.global_step + 1 == self.hparams["bad_step"]:
            loss = loss * float("nan")
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        """AdamW with a linear schedule by step."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


def main() -> None:
    """Train 8 steps and save every 2."""
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--bad-step", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    seed_everything(5, verbose=False)
    rows = torch.utils.data.TensorDataset(torch.randn(64, 8))
    saving = ModelCheckpoint(
        dirpath=options.output / "checkpoints", every_n_train_steps=2, save_top_k=-1, save_last=True
    )
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=8,
        log_every_n_steps=1,
        logger=CSVLogger(options.output, name="logs"),
        callbacks=[saving],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(options.bad_step), torch.utils.data.DataLoader(rows, batch_size=4))


if __name__ == "__main__":
    main()
