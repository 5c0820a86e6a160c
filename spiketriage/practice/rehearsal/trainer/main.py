"""Production entry of the reference trainer, started by torchrun: resume and train.

It never skips, retries or judges a step, unless its `guard` is turned on.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch.distributed as dist

from spiketriage.train.generations.generation import newest_complete
from spiketriage.train.guarding.guard import exit_with_code
from spiketriage.train.harness import Context
from spiketriage.train.recording.recorder import Recorder

from .trainer import factory


def main() -> None:
    """Train until the configured number of steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    run = parser.parse_args().folder.resolve()
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    code = Path(__file__).resolve().parent
    trainer = factory(
        Context(
            run=run, code=code, rank=rank, world_size=int(os.environ["WORLD_SIZE"]), device="cpu"
        )
    )
    # Steps of a tenth of a second cannot pay for every digest out of 1 %; a practice run records
    # everything.
    with (
        exit_with_code(),
        Recorder(
            run / "telemetry", rank=rank, identity=trainer.environment(), budget_share=None
        ) as recorder,
    ):
        generation = newest_complete(run / "checkpoints")
        if generation is not None:
            loaded = trainer.load(generation, "deployed")
            digests = loaded.digests
            recorder.loaded(
                step=loaded.step,
                generation=loaded.generation,
                fields=digests.fields,
                tensors=digests.tensors,
            )
        print(f"rank {rank}: training from step {trainer.last_step + 1}", flush=True)
        for step in range(trainer.last_step + 1, trainer.config.num_steps + 1):
            trainer.step(step, recorder)
            if step % trainer.config.save_every == 0:
                trainer.save(run / "checkpoints")
        print(f"rank {rank}: done at step {trainer.last_step}", flush=True)
    dist.destroy_process_group()
