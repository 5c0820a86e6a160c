"""Planted faults and controls, one a file.

`FAULTS` lists them in the order in which they are shown.
"""

from __future__ import annotations

from types import ModuleType

from spiketriage.practice.rehearsal.faults import (
    bad_document,
    fp16_overflow,
    healthy,
    kernel_shape_bug,
    rare_but_clean_batch,
    scheduler_reset,
    shard_bitrot,
    skipped_all_reduce,
    stale_optimizer,
    weight_bit_flip,
)

FAULTS: tuple[ModuleType, ...] = (
    shard_bitrot,
    bad_document,
    scheduler_reset,
    stale_optimizer,
    kernel_shape_bug,
    fp16_overflow,
    weight_bit_flip,
    skipped_all_reduce,
    healthy,
    rare_but_clean_batch,
)
