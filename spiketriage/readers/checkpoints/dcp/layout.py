"""A torch DCP checkpoint (`.metadata` and `__{rank}_{n}.distcp`), alone or inside another layout.

This module never believes a pointer file: a checkpoint is complete when its metadata and all its
bytes are there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from spiketriage.errors import EvidenceError
from spiketriage.nouns.checkpoint import CheckpointFacts, StatedStep
from spiketriage.readers.checkpoints.building.builder import CheckpointBuilder, begin
from spiketriage.readers.checkpoints.building.folder import read_small, sentence, some
from spiketriage.readers.checkpoints.dcp import files as dcp_files
from spiketriage.readers.checkpoints.dcp import metadata as dcp_metadata
from spiketriage.readers.checkpoints.dcp import objects as dcp_objects
from spiketriage.readers.checkpoints.dcp.objects import Split, whole
from spiketriage.readers.look import Look, look

NAME = "dcp"
TELLS = (
    "Every tensor's chunks, a checksum each, lost, cut and swapped files, and what the "
    "trainer stored of step, RNG and cursor."
)
CANNOT = (
    "More than a lower bound of the world size, and whatever the trainer did not store beside "
    "its tensors."
)
METADATA = ".metadata"
SUFFIX = ".distcp"
_LOWER_BOUND = "the world size is a lower bound: the highest rank in a file's name, and one"
_STEP = re.compile(
    r"(?:^|[^a-z])(?:global_?steps?|steps?|iter|iteration|checkpoint|ckpt|ba|batch)[-_=]?(\d{1,18})(?!\d)",
    re.IGNORECASE,
)


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
    return finish(begin_dcp(path), NAME)


def begin_dcp(path: Path, *, split: Split = whole) -> CheckpointBuilder:
    """Begin to read a checkpoint that is a DCP folder, and take what DCP itself tells of it.

    Raises:
        EvidenceError: it cannot be read, or holds nothing of DCP.
    """
    builder = begin(path)
    _read(builder, "", split)
    return builder


def read_inside(builder: CheckpointBuilder, under: str) -> CheckpointBuilder:
    """The DCP folder `under` (ending in `/`) of a checkpoint, as a part that is read by itself.

    A folder that is not there, or holds nothing of DCP, is a problem of the part.
    """
    part = builder.part()
    try:
        _read(part, under, whole)
    except EvidenceError as error:
        part.failed(error)
    return part


def finish(
    builder: CheckpointBuilder, layout: str, *, beside: CheckpointBuilder | None = None
) -> CheckpointFacts:
    """The facts of a checkpoint that is a DCP folder.

    What the trainer stored in files `beside` it states steps and fields before DCP does.
    """
    if beside is not None:
        builder.steps, beside.steps = [*beside.steps, *builder.steps], []
        builder.fields, beside.fields = [*beside.fields, *builder.fields], []
        builder.add(beside)
    builder.steps = [*step_of_name(builder.path.name), *builder.steps]
    return builder.finish(layout)


def step_of_name(name: str) -> tuple[StatedStep, ...]:
    """The step that a folder's name states."""
    numbers = _STEP.findall(name)
    if numbers:
        return (StatedStep(source=f"the name {name}", step=int(numbers[-1])),)
    return ()


def know_world_size(builder: CheckpointBuilder, world_size: int | None) -> None:
    """Set a world size that the trainer states, which is no lower bound; None changes nothing."""
    if world_size is not None:
        builder.world_size = world_size
        drop_lower_bound(builder)


def drop_lower_bound(builder: CheckpointBuilder) -> None:
    """Drop the note on the world size: the layout around the DCP folder knows it better."""
    builder.notes = [note for note in builder.notes if note != _LOWER_BOUND]


def _read(builder: CheckpointBuilder, under: str, split: Split) -> None:
    folder = builder.path / under if under else builder.path
    names = look(folder).names
    sizes = {file.path: file.size_bytes for file in builder.files}
    data = {}
    for path, size in sizes.items():
        if path.startswith(under) and path.endswith(SUFFIX):
            data[path] = size
    if METADATA not in names:
        if not data and f"{METADATA}.tmp" not in names:
            raise EvidenceError(f"{folder}: holds neither {METADATA} nor a {SUFFIX} file")
        _miss_metadata(builder, folder, names, data)
        return
    try:
        metadata = dcp_metadata.parse(
            read_small(folder / METADATA), where=folder / METADATA, under=under
        )
    except EvidenceError as error:
        builder.problems.append(
            f"{sentence(error)}: without it nobody knows what the {SUFFIX} files hold"
        )
        builder.complete = False
        builder.world_size = dcp_files.world_size(data)
        return
    _check(builder, metadata, sizes, data, split)


def _miss_metadata(
    builder: CheckpointBuilder, folder: Path, names: tuple[str, ...], data: Mapping[str, int]
) -> None:
    """Say why a folder without metadata is not complete."""
    builder.complete = False
    builder.world_size = dcp_files.world_size(data)
    missing = (
        f"{folder / METADATA}: is missing, so what the {len(data)} {SUFFIX} files hold is not known"
    )
    own = [name for name in names if re.fullmatch(r"__\d+\.metadata", name)]
    if own:
        # Nothing is damaged: it is a way to save that this reader does not know.
        builder.interrupted = (
            f"{missing}: every rank wrote its own ({some(own)}), which is not read here"
        )
    elif f"{METADATA}.tmp" in names:
        builder.interrupted = (
            f"{missing}: the save was interrupted before {METADATA}.tmp was renamed"
        )
    else:
        builder.interrupted = f"{missing}: the save did not finish, or the file was removed"


def _check(
    builder: CheckpointBuilder,
    metadata: dcp_metadata.Metadata,
    sizes: Mapping[str, int],
    data: Mapping[str, int],
    split: Split,
) -> None:
    """Take what the metadata says, held against the files, and what lies beside the tensors."""
    root = builder.path
    checked = dcp_files.check(root, metadata, sizes)
    damage = [*metadata.problems, *checked.problems]
    builder.problems += damage
    builder.complete = not damage
    builder.notes += checked.notes
    builder.globals.update(dict.fromkeys(metadata.globals))
    tensors = [tensor for tensor in checked.tensors if tensor.name not in metadata.transformed]
    builder.tensors += tensors
    plain = [slice_ for slice_ in checked.objects if slice_.key not in metadata.transformed]
    dcp_objects.add_objects(builder, plain, split=split)
    dcp_objects.add_small_tensors(builder, tensors)
    counters = [tensor for tensor in tensors if metadata.states.get(tensor.name) == "step"]
    dcp_objects.add_optimizer_steps(builder, counters)
    if metadata.transformed:
        builder.notes.append(
            f"{some(metadata.transformed)}: stored through a transform (compression), so its "
            "values cannot be read here"
        )
    named = {piece.path for piece in metadata.slices()}
    extra = [path for path, size in data.items() if size and path not in named]
    if extra:
        builder.notes.append(f"{some(extra)}: not named by {METADATA}: left over from another save")
    empty = [path for path, size in data.items() if not size]  # of a rank that held nothing
    builder.world_size = dcp_files.world_size([*named, *empty])
    if builder.world_size is not None:
        builder.notes.append(_LOWER_BOUND)
