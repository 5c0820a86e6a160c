"""Reads a checkpoint of Lightning's Trainer: one `.ckpt` file with model, optimizers and loops.

This module never trusts the file's name alone: what the name says is one stated step among others.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from spiketriage.nouns.checkpoint import CheckpointFacts
from spiketriage.readers.checkpoints.building.builder import CheckpointBuilder, begin
from spiketriage.readers.checkpoints.building.classification import add_classified
from spiketriage.readers.checkpoints.building.state_tree import Source, add_steps
from spiketriage.readers.checkpoints.building.torch_layout import add_named_step, is_torch_file
from spiketriage.readers.checkpoints.files.torch_zip import read_torch_file
from spiketriage.readers.inert import attribute, walk
from spiketriage.readers.look import Look

NAME = "lightning"
TELLS = (
    "Step by name, global_step and loop counters, tensors with places and checksums, "
    "schedulers and hyperparameters."
)
CANNOT = "The random state, which Lightning does not store, and the world size of the run."

_NAMED = re.compile(r"\A(?:.*[-_])?step=(?P<step>\d{1,18})(?:-.*)?\.ckpt")
_VERSION_KEY = b"pytorch-lightning_version"
_COUNTER = ("optimizer", "step", "total", "completed")


def claims(seen: Look, /) -> float:
    """How sure this reader is of a path."""
    if not is_torch_file(seen):
        # a pointer, or what is left of a file: its name says what it should be
        if not seen.is_folder and _NAMED.fullmatch(seen.path.name):
            return 0.6
        return 0.0
    if _VERSION_KEY in seen.head:
        return 0.98
    if _NAMED.fullmatch(seen.path.name):
        return 0.9
    return 0.0


def read(path: Path, /) -> CheckpointFacts:
    """The checkpoint in the file at `path`.

    Raises:
        EvidenceError: it cannot be read at all.
    """
    file = read_torch_file(path)
    builder = begin(path)
    builder.complete = file.whole
    add_named_step(builder, _NAMED)
    source = Source(path=path, relative="")
    add_classified(builder, file, source, kinds={"loops": "progress"})
    _add_loop_step(builder, file.value, source)
    builder.notes.append(
        "a scheduler's last_epoch counts epochs or steps, as configured: it is no stated step"
    )
    return builder.finish(NAME)


def _add_loop_step(builder: CheckpointBuilder, value: Any, source: Source) -> None:
    """Take the first count of optimizer steps that the loops keep."""
    fit_loop = attribute(attribute(value, "loops"), "fit_loop")
    for leaf in walk(fit_loop, max_nodes=10_000):
        if leaf.path[-4:] == _COUNTER:
            counter = {_COUNTER[-1]: leaf.value}
            add_steps(builder, counter, source, under="loops.fit_loop", keys=_COUNTER[-1:])
            return
