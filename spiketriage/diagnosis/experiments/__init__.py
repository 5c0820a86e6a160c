"""One factor a file: what is varied against which control, and how the answers are read.

`EXPERIMENTS` lists them.
"""

from __future__ import annotations

from spiketriage.diagnosis.experiment import Experiment
from spiketriage.diagnosis.experiments import (
    clean_batch_on_older_state,
    clean_batch_on_suspect_state,
    code_heals,
    kernel_heals,
    later_window,
    loader_heals,
    precision_heals,
    reference_code,
    reference_kernel,
    reference_loader,
    reference_precision,
    skip_batch,
    suspect_batch_on_older_state,
    suspect_batch_on_suspect_state,
)

EXPERIMENTS: tuple[Experiment, ...] = (
    suspect_batch_on_suspect_state,
    clean_batch_on_suspect_state,
    suspect_batch_on_older_state,
    clean_batch_on_older_state,
    skip_batch,
    reference_kernel,
    kernel_heals,
    reference_precision,
    precision_heals,
    reference_loader,
    loader_heals,
    reference_code,
    code_heals,
    later_window,
)
