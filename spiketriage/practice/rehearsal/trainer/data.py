"""Documents from shards, packed into rows: the sampler, the reader, and the builder of tensors.

Shapes: M rows of a microbatch, T positions. The reader never alters a byte; what it consumed is
digested as consumed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spiketriage.digests import of_bytes
from spiketriage.nouns.data import Document
from spiketriage.wire import data_index

from .config import Config
from .model import EOS, PAD

SHORT_PACK_TOKENS = (32, 40, 48)
MIN_ROOM_TOKENS = 16

Rows = list[list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """One rank's batch as read: its name and every document's bytes."""

    ids: Any
    content: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Micro:
    """One microbatch as tensors; `mask_M1TT` is True where a position may attend."""

    inputs_MT: Tensor
    labels_MT: Tensor
    valid_MT: Tensor
    mask_M1TT: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One rank's batch: microbatches, and what they were made from."""

    ids: Any
    digests: Mapping[str, str]
    micros: tuple[Micro, ...]


def pack_lengths(config: Config) -> dict[int, int]:
    """Steps with shorter rows than usual (length-bucketed ones), and their length in tokens."""
    chooser = random.Random(f"{config.seed}/pack-lengths")
    lengths, step = {}, chooser.randint(9, 17)
    while step <= config.num_steps:
        lengths[step] = chooser.choice(SHORT_PACK_TOKENS)
        step += chooser.randint(9, 17)
    return lengths


class Sampler:
    """Draws documents in a fixed shuffled order; the cursor is a position in that order."""

    def __init__(self, config: Config, lengths: Mapping[str, int], num_ranks: int) -> None:
        self.config, self.lengths, self.num_ranks = config, lengths, num_ranks
        names = sorted(lengths)
        order = np.random.Generator(np.random.PCG64(config.seed)).permutation(len(names))
        self.order = [names[number] for number in order]
        self.short = pack_lengths(config)
        self.cursor = {"step": 0, "position": 0}

    def draw(self, step: int) -> list[Any]:
        """Every rank's batch name for `step`, from the cursor on, which moves behind it."""
        if step <= self.cursor["step"]:
            raise ValueError(f"step {step} lies before the cursor at step {self.cursor['step']}")
        while True:
            self.cursor["step"] += 1
            names = [self._rank_batch(self.cursor["step"]) for _ in range(self.num_ranks)]
            if self.cursor["step"] == step:
                return names

    def _rank_batch(self, step: int) -> dict[str, Any]:
        pack = self.short.get(step, self.config.pack_tokens)
        num_rows = self.config.micro_tokens // pack
        micros = []
        for _ in range(self.config.num_micro):
            micros.append([self._row(pack) for _ in range(num_rows)])
        return {"pack_tokens": pack, "micros": micros}

    def _row(self, pack: int) -> list[str]:
        row: list[str] = []
        room = pack
        while room >= MIN_ROOM_TOKENS:
            name = self.order[self.cursor["position"] % len(self.order)]
            self.cursor["position"] += 1
            row.append(name)
            room -= self.lengths[name] + 1
        return row


class Reader:
    """Reads documents from the shards beside an index."""

    def __init__(self, index: Path) -> None:
        self.folder = index.parent
        _, self.documents = data_index.from_json(json.loads(index.read_text(encoding="utf-8")))

    def lengths(self) -> dict[str, int]:
        """Length of every document in bytes."""
        return {name: document.length_bytes for name, document in self.documents.items()}

    def read(self, ids: Any) -> Raw:
        """The content of every document that `ids` names."""
        names = {name for rows in ids["micros"] for row in rows for name in row}
        return Raw(
            ids=ids, content={name: self._read(self.documents[name]) for name in sorted(names)}
        )

    def _read(self, document: Document) -> bytes:
        with (self.folder / document.shard).open("rb") as shard:
            shard.seek(document.offset_bytes)
            return shard.read(document.length_bytes)


def build(raw: Raw) -> Batch:
    """Tensors of every microbatch: documents end to end, each with EOS, cut at the row's end."""
    micros = []
    for rows in raw.ids["micros"]:
        contents = []
        for row in rows:
            contents.append([raw.content[name] for name in row])
        micros.append(_micro(contents, raw.ids["pack_tokens"]))
    digests = {name: of_bytes(data) for name, data in raw.content.items()}
    return Batch(ids=raw.ids, digests=digests, micros=tuple(micros))


def _micro(rows: list[list[bytes]], pack: int) -> Micro:
    inputs_MT = torch.full((len(rows), pack), PAD)
    labels_MT = torch.full((len(rows), pack), PAD)
    document_MT = torch.full((len(rows), pack), -1)
    valid_MT = torch.zeros((len(rows), pack), dtype=torch.bool)
    for m, row in enumerate(rows):
        start = 0
        for number, data in enumerate(row):
            tokens = torch.tensor([*data, EOS])[: pack - start]
            end = start + len(tokens)
            inputs_MT[m, start:end] = tokens
            document_MT[m, start:end] = number
            labels_MT[m, start : end - 1] = tokens[1:]
            valid_MT[m, start : end - 1] = True
            start = end
    same_MTT = document_MT[:, :, None] == document_MT[:, None, :]
    causal_TT = torch.ones((pack, pack), dtype=torch.bool).tril()
    return Micro(
        inputs_MT=inputs_MT,
        labels_MT=labels_MT,
        valid_MT=valid_MT,
        mask_M1TT=(same_MTT & causal_TT)[:, None],
    )
