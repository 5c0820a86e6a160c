"""Two gloo ranks that train one rehearsal run as its `main` does, each in a process of its own.

A fork server imports torch once; what they leave is the run folder.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from rank_processes import run_ranks

from spiketriage.practice.rehearsal import trainer
from spiketriage.practice.rehearsal.trainer.config import read_config
from spiketriage.practice.rehearsal.trainer.trainer import Trainer
from spiketriage.train.harness import Context
from spiketriage.train.recording.recorder import Recorder

CODE = Path(trainer.__file__).parent
NUM_RANKS = 2


def ready(run: Path, rank: int = 0, world_size: int = 1) -> Trainer:
    """The trainer of one rank, from the files of its run."""
    context = Context(run=run, code=CODE, rank=rank, world_size=world_size, device="cpu")
    return Trainer(context, read_config(run / "config.json"))


def train_on_two(run: Path, num_steps: int) -> None:
    """Train a prepared run from its first step on, and save once at the end."""
    assert run_ranks(_rank, NUM_RANKS, str(run), num_steps) == [0] * NUM_RANKS


def _rank(rank: int, folder: str, num_steps: int) -> None:
    torch.set_num_threads(1)
    run = Path(folder)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=NUM_RANKS
    )
    one = ready(run, rank, NUM_RANKS)
    with Recorder(
        run / "telemetry", rank=rank, identity=one.environment(), budget_share=None
    ) as recorder:
        for step in range(1, num_steps + 1):
            one.step(step, recorder)
    one.save(run / "checkpoints")
    dist.destroy_process_group()
