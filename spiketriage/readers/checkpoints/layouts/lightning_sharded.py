"""A sharded checkpoint of Lightning, Fabric or litgpt: a torch DCP folder with `meta.pt` in it.

This module never reads more of `meta.pt` than its pickle and small tensors.
"""

from __future__ import annotations

from pathlib import Path

from spiketriage.errors import EvidenceError
from spiketriage.nouns.checkpoint import CheckpointFacts
from spiketriage.readers.checkpoints.building.classification import add_classified
from spiketriage.readers.checkpoints.building.state_tree import Source, add_field, add_steps
from spiketriage.readers.checkpoints.dcp import layout as dcp
from spiketriage.readers.checkpoints.files.torch_zip import read_torch_file
from spiketriage.readers.inert import attribute
from spiketriage.readers.look import Look

NAME = "lightning-sharded"
TELLS = (
    "What torch DCP tells, with step, schedulers, loop progress and hyperparameters from meta.pt."
)
CANNOT = (
    "The random state and the data cursor unless the user saved them; the world size is a "
    "lower bound."
)
META = "meta.pt"


def claims(seen: Look) -> float:
    """How sure this is a folder that Lightning sharded."""
    if not seen.is_folder or META not in seen.names:
        return 0.0
    if dcp.claims(seen):
        return 0.97
    return 0.0


def read(path: Path) -> CheckpointFacts:
    """The checkpoint in folder `path`.

    Raises:
        EvidenceError: it cannot be read, or holds nothing of DCP.
    """
    builder = dcp.begin_dcp(path)
    beside = builder.part()
    try:
        file = read_torch_file(path / META)
    except EvidenceError as error:
        beside.failed(error)
        return dcp.finish(builder, NAME, beside=beside)
    source = Source(path=path / META, relative=META)
    add_classified(beside, file, source)
    schedulers = attribute(file.value, "lr_schedulers")
    for number, scheduler in enumerate(schedulers if isinstance(schedulers, list) else ()):
        add_steps(beside, scheduler, source, under=f"lr_schedulers.{number}", keys=("last_epoch",))
    hyperparameters = attribute(file.value, "hyper_parameters")
    if hyperparameters and not any(field.name == "hyper_parameters" for field in beside.fields):
        add_field(beside, "config", "hyper_parameters", hyperparameters, source)
    return dcp.finish(builder, NAME, beside=beside)
