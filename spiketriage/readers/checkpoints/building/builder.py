"""One builder for every layout: filled while a checkpoint is read, then finished into its facts.

This module never opens a file, and never decides whether a checkpoint is complete: each layout has
a rule of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from spiketriage.errors import EvidenceError
from spiketriage.nouns.checkpoint import (
    CheckpointFacts,
    Extent,
    FieldFacts,
    Promise,
    StatedStep,
    TensorFacts,
)
from spiketriage.nouns.file import StoredFile
from spiketriage.readers.checkpoints.building.folder import sentence, stored_files
from spiketriage.readers.checkpoints.building.optimizer_order import Named
from spiketriage.readers.look import Look, look

T = TypeVar("T")

NO_DATA_STATE = (
    "no random state and no data cursor is stored: which data follow a resume cannot be proved"
)


@dataclass(slots=True, kw_only=True)
class CheckpointBuilder:
    """What has been read of the checkpoint at `path` so far.

    `names` are those right in its folder (none where it is one file), `files` all that belong to
    it. `complete` holds until something that the layout asks for turns out to be missing or
    damaged. `order` is the model's parameters in module order, where its weights tell it.
    """

    path: Path
    names: tuple[str, ...] = ()
    files: tuple[StoredFile, ...] = ()
    complete: bool = True
    world_size: int | None = None
    interrupted: str = ""
    steps: list[StatedStep] = field(default_factory=list)
    tensors: list[TensorFacts] = field(default_factory=list)
    fields: list[FieldFacts] = field(default_factory=list)
    extents: list[Extent] = field(default_factory=list)
    promises: list[Promise] = field(default_factory=list)
    globals: dict[str, None] = field(default_factory=dict)  # a set that keeps its order
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    order: list[Named] = field(default_factory=list)

    def part(self) -> CheckpointBuilder:
        """An empty builder for a part of the same checkpoint that is read by itself."""
        return CheckpointBuilder(path=self.path, names=self.names, files=self.files)

    def add(self, part: CheckpointBuilder) -> None:
        """Take all that was read of a part, which must be complete for the whole to be so."""
        self.complete &= part.complete
        self.steps += part.steps
        self.tensors += part.tensors
        self.fields += part.fields
        self.extents += part.extents
        self.promises += part.promises
        self.globals.update(part.globals)
        self.problems += part.problems
        self.notes += part.notes

    def failed(self, error: EvidenceError) -> None:
        """Note that something cannot be read, which makes the checkpoint incomplete."""
        self.problems.append(sentence(error))
        self.complete = False

    def lacks(self, what: str) -> None:
        """Note in a sentence what the folder does not hold, which makes it incomplete."""
        self.problems.append(f"{self.path}: {what}")
        self.complete = False

    def numbered(self, pattern: re.Pattern[str]) -> dict[int, str]:
        """The names in the folder by the number that `pattern` finds in them, 0 where it is out."""
        names: dict[int, str] = {}
        for name in self.names:
            match = pattern.match(name)
            if match:
                names[int(match[1] or 0)] = name
        return names

    def finish(self, layout: str, *, name: str = "") -> CheckpointFacts:
        """The facts; what several files state alike is stated once."""
        has_optimizer = any(tensor.role == "optimizer" for tensor in self.tensors)
        if has_optimizer and not any(field.kind in ("rng", "cursor") for field in self.fields):
            self.notes.append(NO_DATA_STATE)
        return CheckpointFacts(
            layout=layout,
            name=name or self.path.name,
            path=self.path,
            complete=self.complete,
            world_size=self.world_size,
            interrupted=self.interrupted,
            stated_steps=_distinct(self.steps),
            files=self.files,
            tensors=tuple(self.tensors),
            fields=tuple(self.fields),
            extents=tuple(self.extents),
            promises=tuple(self.promises),
            globals=tuple(self.globals),
            problems=_distinct(self.problems),
            notes=_distinct(self.notes),
        )


def begin(path: Path) -> CheckpointBuilder:
    """Begin to read the file or the folder at `path`.

    Raises:
        EvidenceError: it is missing, or cannot be read.
    """
    return _begin(look(path))


def begin_folder(path: Path) -> CheckpointBuilder:
    """Begin to read the folder at `path`.

    Raises:
        EvidenceError: it is no folder, or cannot be read.
    """
    seen = look(path)
    if not seen.is_folder:
        raise EvidenceError(f"{path}: is a file, not a checkpoint folder")
    return _begin(seen)


def _begin(seen: Look) -> CheckpointBuilder:
    if seen.is_folder:
        return CheckpointBuilder(path=seen.path, names=seen.names, files=stored_files(seen.path))
    file = StoredFile(path="", size_bytes=seen.size_bytes)
    return CheckpointBuilder(path=seen.path, files=(file,))


def _distinct(values: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(values))
