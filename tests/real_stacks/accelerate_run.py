"""A run of Accelerate that saves its state every two steps, with gradients of infinity planted at step `--bad-step`.

Run as `python accelerate_run.py OUTPUT [--bad-step K]`: `OUTPUT/checkpoints/checkpoint_i`,
`OUTPUT/metrics.jsonl`.
"""

from __future__ import annotations

import argparse
import json
from collections import OrderedDict
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration


def main() -> None:
    """Train 8 steps and save every 2."""
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--bad-step", type=int, default=0)
    options = parser.parse_args()
    project = ProjectConfiguration(
        project_dir=str(options.output), automatic_checkpoint_naming=True
    )
    accelerator = Accelerator(cpu=True, project_config=project)
    torch.manual_seed(3)
    model = torch.nn.Sequential(
        OrderedDict(first=torch.nn.Linear(8, 16), norm=torch.nn.LayerNorm(16))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
    rows = torch.utils.data.TensorDataset(torch.randn(32, 8))
    loader = torch.utils.data.DataLoader(rows, batch_size=4)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    options.output.mkdir(parents=True, exist_ok=True)
    with (options.output / "metrics.jsonl").open("w") as log:
        for step, (batch,) in enumerate(loader, start=1):
            loss = model(batch).square().mean()
            if step == options.bad_step:
                loss = loss * float("inf")
            accelerator.backward(loss)
            norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            row = {
                "step": step,
                "loss": loss.item(),
                "grad_norm": float(norm),
                "lr": scheduler.get_last_lr()[0],
            }
            log.write(json.dumps(row) + "\n")
            if step % 2 == 0:
                accelerator.save_state()


if __name__ == "__main__":
    main()
