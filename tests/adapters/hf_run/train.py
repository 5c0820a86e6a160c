"""A small GPT-2 on the documents of a run folder, by the Hugging Face Trainer.

`python hf_run/train.py RUN`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from spiketriage.train.adapters.hf_trainer import HfJob
from spiketriage.train.guarding.guard import Policy

LENGTH, EOS, PAD = 64, 256, 257


class Documents(Dataset[Any]):
    """The documents of an index, read from their shards byte by byte."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        self.rows = [dict(zip(index["columns"], row, strict=True)) for row in index["documents"]]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: int) -> bytes:
        row = self.rows[key]
        with (self.folder / row["shard"]).open("rb") as shard:
            shard.seek(row["offset_bytes"])
            return shard.read(row["length_bytes"])

    def content(self, key: int) -> dict[str, bytes]:
        """For the recorder: the documents behind an example."""
        return {self.rows[key]["id"]: self[key]}


def collate(documents: list[bytes]) -> dict[str, torch.Tensor]:
    """Rows of bytes, ended and padded; padding has no label."""
    inputs_BT = torch.full((len(documents), LENGTH), PAD)
    for row, data in enumerate(documents):
        tokens = torch.tensor([*data, EOS])[:LENGTH]
        inputs_BT[row, : len(tokens)] = tokens
    is_token_BT = inputs_BT != PAD
    labels_BT = inputs_BT.masked_fill(~is_token_BT, -100)
    return {"input_ids": inputs_BT, "attention_mask": is_token_BT.long(), "labels": labels_BT}


class Resume(TrainerCallback):
    """What this job does when it begins or resumes."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        print(f"training from step {state.global_step + 1}", flush=True)


def make_trainer(run: Path) -> Trainer:
    """Everything built, nothing trained."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=258,
        n_positions=LENGTH,
        n_embd=48,
        n_layer=3,
        n_head=4,
        bos_token_id=EOS,
        eos_token_id=EOS,
    )
    settings = {
        "save_strategy": "no",
        **json.loads((run / "settings.json").read_text(encoding="utf-8")),
    }
    arguments = TrainingArguments(
        output_dir=str(run / "hf"),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        learning_rate=4e-3,
        lr_scheduler_type="cosine",
        warmup_steps=5,
        weight_decay=0.1,
        logging_steps=10,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        **settings,
    )
    return Trainer(
        model=GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=Documents(run / "data"),
        data_collator=collate,
        callbacks=[Resume()],
    )


job = HfJob(
    make_trainer, save_every=20, policy=Policy(warmup_steps=20, outlier="skip"), budget_share=None
)
factory = job.harness

if __name__ == "__main__":
    job.train(Path(sys.argv[1]))
