"""What can be tried: families of experiments as tables, and the special ones a file each.

`EXPERIMENTS` lists them from the cheap and telling to the dear; it never tries anything itself.
"""

from __future__ import annotations

from spiketriage.diagnosis.experiment import Experiment
from spiketriage.diagnosis.experiments import (
    heals,
    later_window,
    reference_code,
    reference_loader,
    references,
    skip_batch,
)
from spiketriage.diagnosis.experiments.cells import CELLS

EXPERIMENTS: tuple[Experiment, ...] = (
    *CELLS,
    skip_batch.EXPERIMENT,
    references.KERNEL,
    heals.KERNEL,
    references.PRECISION,
    heals.PRECISION,
    reference_loader.EXPERIMENT,
    heals.LOADER,
    reference_code.EXPERIMENT,
    heals.CODE,
    later_window.EXPERIMENT,
)
