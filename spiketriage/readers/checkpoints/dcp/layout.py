"""A torch DCP checkpoint (`.metadata` and `__{rank}_{n}.distcp`), alone or inside another layout.

This module never believes a pointer file: a checkpoint is complete when its metadata and all its
bytes are there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from spiketriage.errors import EvidenceError
from spiketriage.nouns.checkpoint import (
    CheckpointFacts,
    Extent,
    FieldFacts,
    StatedStep,
    TensorFacts,
)
from spiketriage.nouns.file import StoredFile
from spiketriage.readers.checkpoints.building.folder import some, stored_files
from spiketriage.readers.checkpoints.building.state_tree import Gathered
from spiketriage.readers.checkpoints.dcp import files as dcp_files
from spiketriage.readers.checkpoints.dcp import metadata as dcp_metadata
from spiketriage.readers.checkpoints.dcp import objects as dcp_objects
from spiketriage.readers.checkpoints.dcp.objects import Split, whole
from spiketriage.readers.json_file import read_bytes
from spiketriage.readers.look import Look, look, refuse_pointer

NAME = "dcp"
TELLS = (
    "Every tensor's chunks, a checksum each, lost, cut and swapped files, and what the "
    "trainer stored of "
    "step, RNG and cursor."
)
CANNOT = (
    "More than a lower bound of the world size, and whatever the trainer did not store beside "
    "its tensors."
)
METADATA = ".metadata"
SUFFIX = ".distcp"
LOWER_BOUND = "the world size is a lower bound: the highest rank in a file's name, and one"
_STEP = re.compile(
    r"(?:^|[^a-z])(?:global_?steps?|steps?|iter|iteration|checkpoint|ckpt|ba|batch)[-_=]?(\d{1,18})(?!\d)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one DCP folder holds.

    `complete` is whether metadata, files, sizes and chunks fit together.

    `interrupted` is why it is not, where the save merely did not end.
    """

    complete: bool
    world_size: int | None
    tensors: tuple[TensorFacts, ...] = ()
    fields: tuple[FieldFacts, ...] = ()
    steps: tuple[StatedStep, ...] = ()
    extents: tuple[Extent, ...] = ()
    globals: tuple[str, ...] = ()
    interrupted: str = ""
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def claims(seen: Look) -> float:
    """How sure this is a DCP folder."""
    if not seen.is_folder:
        return 0.0
    has_data = any(name.endswith(SUFFIX) for name in seen.names)
    if METADATA in seen.names:
        if has_data:
            return 0.9
        return 0.6
    if has_data or f"{METADATA}.tmp" in seen.names:
        return 0.7
    return 0.0


def read(path: Path) -> CheckpointFacts:
    """The DCP checkpoint in folder `path`.

    Raises:
        EvidenceError: it cannot be read, or holds nothing of DCP.
    """
    files = stored_files(path)
    return facts(path, NAME, read_part(path, files), files)


def facts(
    path: Path,
    layout: str,
    part: Part,
    files: tuple[StoredFile, ...],
    beside: Gathered | None = None,
) -> CheckpointFacts:
    """A checkpoint that is one DCP folder, with what was gathered from files beside it."""
    beside = Gathered() if beside is None else beside
    return CheckpointFacts(
        layout=layout,
        name=path.name,
        path=path,
        stated_steps=(*step_of_name(path.name), *beside.steps, *part.steps),
        complete=part.complete,
        world_size=part.world_size,
        files=files,
        tensors=(*part.tensors, *beside.tensors),
        fields=(*beside.fields, *part.fields),
        extents=(*part.extents, *beside.extents),
        globals=tuple(dict.fromkeys((*part.globals, *beside.globals))),
        interrupted=part.interrupted,
        problems=(*part.problems, *beside.problems),
        notes=(*part.notes, *beside.notes),
    )


def step_of_name(name: str) -> tuple[StatedStep, ...]:
    """The step that a folder's name states."""
    found = _STEP.findall(name)
    if found:
        return (StatedStep(source=f"the name {name}", step=int(found[-1])),)
    return ()


def read_part(
    root: Path, files: tuple[StoredFile, ...], *, under: str = "", split: Split = whole
) -> Part:
    """The DCP folder `under` (empty, or ending in `/`) of the checkpoint `root`, whose files are `files`.

    Raises:
        EvidenceError: there is nothing of DCP in it.
    """
    folder = root / under if under else root
    names = look(folder).names
    sizes = {file.path: file.size_bytes for file in files}
    data = {}
    for path, size in sizes.items():
        if path.startswith(under) and path.endswith(SUFFIX):
            data[path] = size
    if METADATA not in names:
        if not data and f"{METADATA}.tmp" not in names:
            raise EvidenceError(f"{folder}: holds neither {METADATA} nor a {SUFFIX} file")
        return _without_metadata(folder, names, data)
    try:
        raw = read_bytes(folder / METADATA)
        refuse_pointer(folder / METADATA, raw)
        metadata = dcp_metadata.parse(raw, where=folder / METADATA, under=under)
    except EvidenceError as error:
        hint = f" ({error.hint})" if error.hint else ""
        problem = f"{error.message}{hint}: without it nobody knows what the {SUFFIX} files hold"
        return Part(complete=False, world_size=dcp_files.world_size(data), problems=(problem,))
    return _checked(root, metadata, sizes, data, split)


def _without_metadata(folder: Path, names: tuple[str, ...], data: Mapping[str, int]) -> Part:
    own = [name for name in names if re.fullmatch(r"__\d+\.metadata", name)]
    missing = (
        f"{folder / METADATA}: is missing, so what the {len(data)} {SUFFIX} files hold is not known"
    )
    part = Part(complete=False, world_size=dcp_files.world_size(data))
    if own:
        return replace(
            part,
            problems=(
                f"{missing}: every rank wrote its own ({some(own)}), which is not read here",
            ),
        )
    if f"{METADATA}.tmp" in names:
        return replace(
            part,
            interrupted=f"{missing}: the save was interrupted before {METADATA}.tmp was renamed",
        )
    return replace(part, interrupted=f"{missing}: the save did not finish, or the file was removed")


def _checked(
    root: Path,
    metadata: dcp_metadata.Metadata,
    sizes: Mapping[str, int],
    data: Mapping[str, int],
    split: Split,
) -> Part:
    checked = dcp_files.check(root, metadata, sizes)
    damage = (*metadata.problems, *checked.problems)
    state = Gathered(notes=list(checked.notes))
    plain = [one for one in checked.objects if one.key not in metadata.transformed]
    tensors = [one for one in checked.tensors if one.name not in metadata.transformed]
    dcp_objects.read_objects(root, plain, state, split=split)
    dcp_objects.read_small_tensors(root, tensors, state)
    dcp_objects.read_optimizer_steps(
        root, (one for one in tensors if metadata.states.get(one.name) == "step"), state
    )
    if metadata.transformed:
        names = some(metadata.transformed)
        state.notes.append(
            f"{names}: stored through a transform (compression), so its values cannot be read here"
        )
    named = {piece.path for piece in metadata.slices()}
    extra = [path for path, size in data.items() if size and path not in named]
    if extra:
        state.notes.append(f"{some(extra)}: not named by {METADATA}: left over from another save")
    world_size = dcp_files.world_size({*named, *(path for path, size in data.items() if not size)})
    if world_size is not None:
        state.notes.append(LOWER_BOUND)
    names_asked = dict.fromkeys((*metadata.globals, *state.globals))
    return Part(
        complete=not damage,
        world_size=world_size,
        tensors=tuple(tensors),
        fields=tuple(state.fields),
        steps=tuple(state.steps),
        extents=tuple(state.extents),
        globals=tuple(names_asked),
        problems=(*damage, *state.problems),
        notes=tuple(state.notes),
    )
