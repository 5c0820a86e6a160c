"""The checkpoint layouts that can be read, the most specific first.

This module never opens a file: each layout has a file of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, cast

from spiketriage.nouns.checkpoint import CheckpointFacts
from spiketriage.readers.checkpoints.dcp import layout as dcp
from spiketriage.readers.checkpoints.layouts import (
    accelerate,
    composer,
    composer_sharded,
    deepspeed_universal,
    deepspeed_zero,
    hf_trainer,
    lightning,
    lightning_sharded,
    litgpt,
    llmc,
    megatron_dist,
    megatron_legacy,
    nanotron,
    olmo_core,
    own_generation,
    safetensors_files,
    torch_save,
    torchtitan,
)
from spiketriage.readers.look import Format


class Layout(Format, Protocol):
    """A checkpoint layout."""

    def read(self, path: Path, /) -> CheckpointFacts:
        """The checkpoint at `path` from its metadata; what is damaged is in `problems`.

        Raises:
            EvidenceError: it cannot be read at all, or is not of this layout.
        """
        ...


LAYOUTS: tuple[Layout, ...] = cast(
    "tuple[Layout, ...]",
    (
        own_generation,
        deepspeed_universal,
        deepspeed_zero,
        olmo_core,
        megatron_dist,
        lightning_sharded,
        torchtitan,
        composer_sharded,
        hf_trainer,
        accelerate,
        nanotron,
        megatron_legacy,
        litgpt,
        llmc,
        lightning,
        composer,
        dcp,
        torch_save,
        safetensors_files,
    ),
)
