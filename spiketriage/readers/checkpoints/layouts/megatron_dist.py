"""A Megatron `torch_dist` iteration.

A torch DCP folder with `metadata.json`, a common state, perhaps `integrity.json`.

This module never believes `latest_checkpointed_iteration.txt`: where it disagrees, that is a note.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from spiketriage.errors import EvidenceError
from spiketriage.nouns.checkpoint import CheckpointFacts, FieldFacts, FieldKind, Promise, StatedStep
from spiketriage.nouns.file import StoredFile
from spiketriage.readers import pickles
from spiketriage.readers.checkpoints.building.folder import read_json, some, stored_files
from spiketriage.readers.checkpoints.building.optimizer_names import field_kind
from spiketriage.readers.checkpoints.building.state_fields import Contents
from spiketriage.readers.checkpoints.building.state_tree import Gathered, Source, add_file
from spiketriage.readers.checkpoints.dcp import layout
from spiketriage.readers.checkpoints.dcp.objects import Piece, take
from spiketriage.readers.checkpoints.files.torch_values import TensorRef
from spiketriage.readers.checkpoints.files.torch_zip import read_torch_file
from spiketriage.readers.json_file import is_inside, read_bytes
from spiketriage.readers.look import Look, look

NAME = "megatron-dist"
TELLS = (
    "What torch DCP tells, with arguments, parallel sizes, iteration, samples, FP8 and RNG "
    "shards, and "
    "integrity.json's SHA-256."
)
CANNOT = "The parameters behind optimizer buckets in formats that are local to data-parallel ranks."
CONFIG, COMMON, INTEGRITY, TRACKER = (
    "metadata.json",
    "common.pt",
    "integrity.json",
    "latest_checkpointed_iteration.txt",
)
COMMON_KEY = "common_state"
_FOLDER = re.compile(r"(?:iter_\d{7,18}|release)\Z")
_SHARD = re.compile(r"(.+)/shard_([\d.]{1,100})_([\d.\-]{1,100})\Z", re.DOTALL)
_COMMON_KINDS: Mapping[str, FieldKind] = {
    "args": "config",
    "opt_param_scheduler": "scheduler",
    "content_metadata": "config",
    "rng_state": "rng",
}
_DELAYED = (b"amax_history_fwd", b"scale_fwd", b"scale_bwd", b"amax_history_bwd")


def claims(seen: Look) -> float:
    """How sure this is a Megatron iteration in torch_dist format."""
    score = layout.claims(seen)
    if not score or not seen.is_folder:
        return 0.0
    if _is_ours(seen):
        return 0.98
    named = _FOLDER.match(seen.path.name) is not None
    if named:
        return 0.92
    return 0.0


def _is_ours(seen: Look) -> bool:
    if CONFIG not in seen.names:
        return False
    try:
        return read_json(seen.path / CONFIG).get("sharded_backend") == "torch_dist"
    except EvidenceError:
        return False


def read(path: Path) -> CheckpointFacts:
    """The iteration in folder `path`.

    Raises:
        EvidenceError: it cannot be read, or holds nothing of DCP.
    """
    seen, files = look(path), stored_files(path)
    beside = Gathered()
    part = layout.read_part(path, files, split=_pieces)
    problems = _missing_shards(part)
    if CONFIG in seen.names:
        problems += _config_problems(path)
    elif not part.interrupted:
        part = replace(
            part,
            complete=False,
            interrupted=f"{path / CONFIG}: is missing; Megatron writes it last",
        )
    if COMMON in seen.names:
        _read_common(path, beside, problems)
    if INTEGRITY in seen.names:
        promises = _promises(path, files, problems)
    else:
        promises = ()
    beside.problems += problems
    beside.notes += _tracker_notes(path)
    fields = (*beside.fields, *part.fields)
    world_size = _argument(fields, "world_size")
    if world_size is not None:
        notes = tuple(note for note in part.notes if note != layout.LOWER_BOUND)
        part = replace(part, world_size=world_size, notes=notes)
    part = replace(part, complete=part.complete and not problems)
    return replace(layout.facts(path, NAME, part, files, beside), promises=promises)


def _pieces(key: str, value: Any, contents: Contents) -> Iterator[Piece]:
    """A ShardedObject is stored as a list of one; the common state is several pieces of state."""
    found = _SHARD.match(key)
    if found is not None and isinstance(value, list) and len(value) == 1:
        value = value[0]
    if found is not None and found[1] == COMMON_KEY and isinstance(value, Mapping):
        yield from common_pieces(value)
        return
    kind = field_kind(key)
    yield Piece(key=key, value=_fp8_state(value, contents) if kind == "fp8" else value, kind=kind)


def common_pieces(common: Mapping[Any, Any]) -> Iterator[Piece]:
    """The pieces of a common state.

    One a key, and the steps that an optimizer keeps in its groups.
    """
    for key, value in common.items():
        name = f"{COMMON_KEY}.{pickles.key_text(key)}"
        yield Piece(key=name, value=value, kind=_COMMON_KINDS.get(str(key)) or field_kind(name))
        if key == "optimizer":
            for leaf in pickles.walk(value):
                if leaf.path[-1:] == ("step",):
                    yield Piece(
                        key=f"{name}.{'.'.join(leaf.path)}", value=leaf.value, kind="progress"
                    )


def _fp8_state(value: Any, contents: Contents) -> Any:
    """Transformer Engine's extra state is a pickle in a byte tensor.

    Only delayed scaling keeps anything in it.
    """
    if isinstance(value, TensorRef):
        raw = contents.bytes_of(value)
    else:
        raw = value
    if not isinstance(raw, bytes):
        return value
    state: dict[str, Any] = {
        "delayed_scaling": any(mark in raw for mark in _DELAYED),
        "bytes": value,
    }
    try:
        state["state"] = pickles.load(raw, where="extra state").value
    except EvidenceError:
        state["state"] = None
    return state


def _config_problems(path: Path) -> list[str]:
    try:
        backend = read_json(path / CONFIG).get("sharded_backend")
    except EvidenceError as error:
        return [error.message]
    if backend == "torch_dist":
        return []
    return [f"{path / CONFIG}: sharded_backend: expected torch_dist, found {backend!r:.80}"]


def _missing_shards(part: layout.Part) -> list[str]:
    """Every ShardedObject names how many shards there are of it."""
    held: dict[tuple[str, str], set[str]] = {}
    for field in part.fields:
        found = _SHARD.match(field.name)
        if found is not None:
            held.setdefault((found[1], found[3]), set()).add(found[2])
    problems = []
    for (name, shape), offsets in held.items():
        sizes = shape.split(".")
        if not all(size.isdecimal() and len(size) < 10 for size in sizes):
            continue  # old checkpoints do not state the last size
        expected = math.prod(map(int, sizes))
        if len(offsets) != expected:
            problems.append(
                f"{name}: {len(offsets)} of its {expected} shards are there ({some(offsets)})"
            )
    return problems


def _read_common(path: Path, beside: Gathered, problems: list[str]) -> None:
    """The common state of older versions, which is a file of its own."""
    try:
        file = read_torch_file(path / COMMON)
    except EvidenceError as error:
        problems.append(error.message)
        return
    source = Source(path=path / COMMON, relative=COMMON)
    add_file(beside, file, source)
    if isinstance(file.value, Mapping):
        for piece in common_pieces(file.value):
            take(piece, COMMON, source.contents, beside)


def _promises(path: Path, files: Iterable[StoredFile], problems: list[str]) -> tuple[Promise, ...]:
    try:
        value = read_json(path / INTEGRITY)
    except EvidenceError as error:
        problems.append(error.message)
        return ()
    algorithm, said = value.get("algorithm", "sha256"), value.get("files")
    if algorithm != "sha256" or not isinstance(said, dict):
        problems.append(
            f"{path / INTEGRITY}: expected SHA-256 digests by file, found {algorithm!r:.80}"
        )
        return ()
    good = {
        name: digest
        for name, digest in said.items()
        if is_inside(name) and isinstance(digest, str) and re.fullmatch(r"[0-9a-f]{64}", digest)
    }
    if len(good) != len(said):
        problems.append(
            f"{path / INTEGRITY}: {some(said.keys() - good.keys())}: no file in this "
            "folder, or no SHA-256"
        )
    held = {file.path for file in files}
    missing = [name for name in good if name not in held]
    if missing:
        problems.append(
            f"{path / INTEGRITY}: promises {some(missing)}, which "
            f"{'is' if len(missing) == 1 else 'are'} not there"
        )
    return tuple(
        Promise(path=name, algorithm="sha256", digest=digest) for name, digest in good.items()
    )


def _tracker_notes(path: Path) -> list[str]:
    tracker = path.parent / TRACKER
    try:
        if not tracker.is_file():
            return []
        text = read_bytes(tracker)[:100].decode("ascii", "replace").strip()
    except (EvidenceError, OSError):
        return [f"{tracker}: cannot be read"]
    steps: tuple[StatedStep, ...] = layout.step_of_name(path.name)
    own = str(steps[0].step) if steps else path.name
    if text == own:
        return []
    return [
        (
            f"{tracker}: names {text!r}, not this checkpoint ({own}); a pointer, which proves "
            "nothing either way"
        )
    ]


def _argument(fields: Iterable[FieldFacts], name: str) -> int | None:
    """An argument that is a count, from the argparse namespace in the common state."""
    for field in fields:
        if field.name == f"{COMMON_KEY}.args":
            text = field.values.get(name, "")
            if text.isdecimal() and 0 < len(text) < 10:
                return int(text)
            return None
    return None
