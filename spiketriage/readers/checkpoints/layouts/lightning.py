"""Reads a checkpoint of Lightning's Trainer.

One `.ckpt` file with the model, its optimizers and the loops.

This module never trusts the file's name alone: what the name says is one stated step among others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spiketriage.errors import EvidenceError
from spiketriage.nouns.checkpoint import CheckpointFacts
from spiketriage.readers.checkpoints.building.state_tree import Gathered, Source, add_steps, gather
from spiketriage.readers.checkpoints.building.torch_layout import facts, is_torch_file, named_step
from spiketriage.readers.checkpoints.files.torch_zip import read_torch_file
from spiketriage.readers.look import Look
from spiketriage.readers.pickles import walk

NAME = "lightning"
TELLS = (
    "Step by name, global_step and loop counters, tensors with places and checksums, "
    "schedulers and hyperparameters."
)
CANNOT = "The random state, which Lightning does not store, and the world size of the run."

_NAMED = re.compile(r"(?:.*[-_])?step=(?P<step>\d{1,18})(?:-.*)?\.ckpt")
_VERSION_KEY = b"pytorch-lightning_version"
_COUNTER = ("optimizer", "step", "total", "completed")


def claims(look: Look, /) -> float:
    """How sure this reader is of a path."""
    if not is_torch_file(
        look
    ):  # a pointer, or what is left of a file: its name says what it should be
        if not look.is_folder and _NAMED.fullmatch(look.path.name):
            return 0.6
        return 0.0
    if _VERSION_KEY in look.head:
        return 0.98
    if _NAMED.fullmatch(look.path.name):
        return 0.9
    return 0.0


def read(path: Path, /) -> CheckpointFacts:
    """The checkpoint in the file at `path`.

    Raises:
        EvidenceError: it cannot be read at all.
    """
    gathered = Gathered()
    file = read_torch_file(path)
    source = Source(path=path, relative="")
    gather(gathered, file, source, kinds={"loops": "progress"})
    if isinstance(file.value, Mapping):
        loops = file.value.get("loops")
    else:
        loops = None
    _add_loop_step(gathered, loops, source)
    gathered.notes.append(
        "a scheduler's last_epoch counts epochs or steps, as configured: it is no stated step"
    )
    named = named_step(path.name, _NAMED)
    try:
        return facts(gathered, layout=NAME, path=path, complete=file.whole, named=named)
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read: {error.strerror or error}") from error


def _add_loop_step(gathered: Gathered, loops: Any, source: Source) -> None:
    if isinstance(loops, Mapping):
        fit = loops.get("fit_loop")
    else:
        fit = None
    for leaf in walk(fit, max_nodes=10_000):
        if leaf.path[-4:] == _COUNTER:
            add_steps(
                gathered,
                {_COUNTER[-1]: leaf.value},
                source,
                under="loops.fit_loop",
                keys=_COUNTER[-1:],
            )
            return
