"""A run of HF Trainer with checkpoints, whose batch of step `--bad-step` makes every later loss and weight NaN.

Run as `python hf_trainer_run.py OUTPUT [--bad-step K] [--no-filter]`: `OUTPUT/checkpoint-N`,
`OUTPUT/stdout.log`.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

VOCAB, LENGTH, BATCH = 64, 16, 4


class Rows(torch.utils.data.Dataset):
    """Random rows, the same in every run; the loader hands them out in order."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, VOCAB, (LENGTH,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


class Poisoned(Trainer):
    """Multiplies the loss of one step by infinity and takes the zero from it.

    NaN, as a bad kernel would give.
    """

    bad_step = 0

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """The loss, which is NaN in the bad step."""
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        return loss * float("nan") if self.state.global_step + 1 == self.bad_step else loss

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def main() -> None:
    """Train 8 steps and save every 2."""
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--bad-step", type=int, default=0)
    parser.add_argument("--no-filter", action="store_true")
    options = parser.parse_args()
    set_seed(7)
    config = GPT2Config(
        vocab_size=VOCAB,
        n_positions=LENGTH,
        n_embd=8,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    arguments = TrainingArguments(
        output_dir=str(options.output),
        max_steps=8,
        save_steps=2,
        per_device_train_batch_size=BATCH,
        learning_rate=1e-3,
        logging_steps=1,
        logging_nan_inf_filter=not options.no_filter,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Poisoned(model=GPT2LMHeadModel(config), args=arguments, train_dataset=Rows())
    trainer.bad_step = options.bad_step
    trainer.train()


if __name__ == "__main__":
    main()
