"""A run of FSDP2 with torch DCP on two gloo ranks, in which rank 1's loss is NaN at step `--bad-step`.

Run under torchrun as `fsdp2_run.py OUTPUT [--bad-step K]`: `OUTPUT/checkpoints/step_N`, and for
every rank `OUTPUT/metrics/rank-R.jsonl` with the loss of that rank's own rows.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Model(nn.Module):
    """A small language model that returns its loss."""

    def __init__(self, vocab: int = 32, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.inner = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The mean loss of predicting every next token."""
        logits = self.head(self.norm(self.inner(self.embed(ids[:, :-1])).relu()))
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def main() -> None:
    """Train 8 steps and save every 2."""
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--bad-step", type=int, default=0)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(11)
    model = Model()
    fully_shard(model, mesh=init_device_mesh("cpu", (num_ranks,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
    rows = torch.Generator().manual_seed(100 + rank)
    (options.output / "metrics").mkdir(parents=True, exist_ok=True)
    with (options.output / "metrics" / f"rank-{rank}.jsonl").open("w") as log:
        for step in range(1, 9):
            loss = model(torch.randint(0, 32, (4, 9), generator=rows))
            if step == options.bad_step and rank == 1:
                loss = loss * float("nan")
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
            lr = scheduler.get_last_lr()[0]
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            told = {"step": step, "loss": loss.item(), "grad_norm": norm.item(), "lr": lr}
            log.write(json.dumps(told) + "\n")
            if step % 2 == 0:
                state = {
                    "model": get_model_state_dict(model),
                    "optimizer": get_optimizer_state_dict(model, optimizer),
                    "lr_scheduler": scheduler.state_dict(),
                    "step": step,
                    f"rng.rank_{rank}": {"torch": torch.get_rng_state()},
                }
                dcp.save(state, checkpoint_id=options.output / "checkpoints" / f"step_{step}")
    dist.barrier()
    sys.stdout.flush()
    os._exit(
        0
        # an orderly end of the interpreter now and then aborts in gloo's threads, and takes the run
        # with it
    )


if __name__ == "__main__":
    main()
