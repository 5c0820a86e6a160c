"""Root causes, one a file, their predictions as data; `CAUSES` lists them."""

from __future__ import annotations

from spiketriage.diagnosis.cause import Cause
from spiketriage.diagnosis.causes.data import (
    bad_document,
    index_changed,
    rare_but_clean_batch,
    shard_bitrot,
)
from spiketriage.diagnosis.causes.numerics import fp16_overflow, kernel_shape_bug
from spiketriage.diagnosis.causes.optimization import (
    hyperparameter_change,
    optimizer_not_restored,
    scheduler_reset,
    stale_optimizer,
)
from spiketriage.diagnosis.causes.systems import (
    code_change,
    environment_differs,
    metric_artefact,
    optimizer_corruption,
    parameters_not_restored,
    skipped_all_reduce,
    transient_compute,
    weight_bit_flip,
    weights_overwritten,
    wrong_parameters_restored,
    wrong_read,
)

CAUSES: tuple[Cause, ...] = (
    shard_bitrot.CAUSE,
    bad_document.CAUSE,
    rare_but_clean_batch.CAUSE,
    index_changed.CAUSE,
    scheduler_reset.CAUSE,
    stale_optimizer.CAUSE,
    optimizer_not_restored.CAUSE,
    hyperparameter_change.CAUSE,
    kernel_shape_bug.CAUSE,
    fp16_overflow.CAUSE,
    weight_bit_flip.CAUSE,
    skipped_all_reduce.CAUSE,
    weights_overwritten.CAUSE,
    wrong_read.CAUSE,
    transient_compute.CAUSE,
    optimizer_corruption.CAUSE,
    environment_differs.CAUSE,
    code_change.CAUSE,
    wrong_parameters_restored.CAUSE,
    parameters_not_restored.CAUSE,
    metric_artefact.CAUSE,
)
