"""A run that leaves what torchtitan leaves.

Its state_dict keys in torch DCP folders, and its lines on stdout.

The gradients of step `--bad-step` are infinite on rank 0. Run under torchrun as
`torchtitan_like_run.py OUTPUT [--bad-step K]`: `OUTPUT/checkpoint/step-N` with the keys of
torchtitan's CheckpointManager; rank 0 prints the log.
"""

from __future__ import annotations

import argparse
import logging
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

LENGTH, BATCH = 16, 2
LINE = (
    "\033[31mstep: {step:2}  \033[32mloss: {loss:8.5f}  \033[38;2;180;60;0mgrad_norm: {norm:7.4f}  "
    "\033[36mmemory:  0.47GiB(0.99%)  \033[34mtps: {tps:,}  \033[36mtflops: 0.01  "
    "\033[35mmfu: 0.00%\033[39m"
)


class Block(nn.Module):
    """One residual block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.w1 = nn.Linear(width, width, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """The hidden states with something added."""
        return hidden + self.w1(self.norm(hidden)).relu()


class Model(nn.Module):
    """Names as in torchtitan's llama: `tok_embeddings`, `layers.N`, `norm`, `output`."""

    def __init__(self, vocab: int = 32, width: int = 16) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocab, width)
        self.layers = nn.ModuleDict({str(number): Block(width) for number in range(2)})
        self.norm = nn.RMSNorm(width)
        self.output = nn.Linear(width, vocab, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits."""
        hidden = self.tok_embeddings(ids)
        for layer in self.layers.values():
            hidden = layer(hidden)
        return self.output(self.norm(hidden))


def save(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any, step: int
) -> None:
    """Every key that torchtitan's CheckpointManager saves.

    Each rank's data loader is a pickle of its own.
    """
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    cursor = pickle.dumps({"_sample_idx": step * BATCH, "_token_buffer": [1, 2, 3]})
    state = {
        **get_model_state_dict(model),
        "optimizer": get_optimizer_state_dict(model, optimizer, options=flat),
        "lr_scheduler": scheduler.state_dict(),
        "dataloader": {f"dp_rank_{rank}": cursor, "world_size": num_ranks},
        "train_state": {"step": step, "ntokens_seen": step * BATCH * LENGTH * num_ranks},
    }
    dcp.save(state, checkpoint_id=path)


def main() -> None:
    """Train 8 steps and save every 2."""
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--bad-step", type=int, default=0)
    options = parser.parse_args()
    logging.basicConfig(
        stream=sys.stdout,
        level=logging.INFO,
        format="[titan] %(asctime)s - %(name)s - %(levelname)s - %(message)s",
    )
    dist.init_process_group("gloo")
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(13)
    model = Model()
    fully_shard(model, mesh=init_device_mesh("cpu", (num_ranks,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
    rows = torch.Generator().manual_seed(200 + rank)
    if rank == 0:
        logging.info("Starting job: a folder like torchtitan's")
        logging.info("Training starts at step 1.")
    for step in range(1, 9):
        ids = torch.randint(0, 32, (BATCH, LENGTH + 1), generator=rows)
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        (loss * float("inf") if step == options.bad_step and rank == 0 else loss).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor().item()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        mean = loss.detach() / num_ranks
        dist.all_reduce(mean)
        if rank == 0:
            logging.info(LINE.format(step=step, loss=mean.item(), norm=norm, tps=7012))
        if step % 2 == 0:
            save(options.output / "checkpoint" / f"step-{step}", model, optimizer, scheduler, step)
    if rank == 0:
        logging.info("Training completed")
    dist.barrier()
    sys.stdout.flush()
    os._exit(
        0
        # an orderly end of the interpreter now and then aborts in gloo's threads, and takes the run
        # with it
    )


if __name__ == "__main__":
    main()
