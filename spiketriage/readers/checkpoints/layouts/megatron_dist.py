"""A Megatron `torch_dist` iteration: a torch DCP folder with settings and a common state.

This module never believes `latest_checkpointed_iteration.txt`: where it disagrees, that is a note.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from spiketriage.errors import EvidenceError
from spiketriage.nouns.checkpoint import CheckpointFacts, FieldFacts, FieldKind, Promise
from spiketriage.readers import inert, pickles
from spiketriage.readers.checkpoints.building.builder import CheckpointBuilder
from spiketriage.readers.checkpoints.building.folder import read_json, some
from spiketriage.readers.checkpoints.building.optimizer_names import field_kind
from spiketriage.readers.checkpoints.building.state_fields import Contents
from spiketriage.readers.checkpoints.building.state_tree import Source, add_file
from spiketriage.readers.checkpoints.building.torch_layout import opened
from spiketriage.readers.checkpoints.dcp import layout as dcp
from spiketriage.readers.checkpoints.dcp.objects import Piece, add_piece
from spiketriage.readers.checkpoints.files.torch_values import TensorRef
from spiketriage.readers.json_file import is_inside, read_bytes
from spiketriage.readers.look import Look

NAME = "megatron-dist"
TELLS = (
    "What torch DCP tells, with arguments, parallel sizes, iteration, samples, FP8 and RNG "
    "shards, and integrity.json's SHA-256."
)
CANNOT = "The parameters behind optimizer buckets in formats that are local to data-parallel ranks."
CONFIG = "metadata.json"
COMMON = "common.pt"
INTEGRITY = "integrity.json"
TRACKER = "latest_checkpointed_iteration.txt"
COMMON_KEY = "common_state"
_FOLDER = re.compile(r"(?:iter_\d{7,18}|release)\Z")
_SHARD = re.compile(r"\A(.+)/shard_([\d.]{1,100})_([\d.\-]{1,100})\Z", re.DOTALL)
_COMMON_KINDS: Mapping[str, FieldKind] = {
    "args": "config",
    "opt_param_scheduler": "scheduler",
    "content_metadata": "config",
    "rng_state": "rng",
}
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DELAYED = (b"amax_history_fwd", b"scale_fwd", b"scale_bwd", b"amax_history_bwd")


def claims(seen: Look) -> float:
    """How sure this is a Megatron iteration in torch_dist format."""
    if not seen.is_folder or not dcp.claims(seen):
        return 0.0
    if _says_torch_dist(seen):
        return 0.98
    if _FOLDER.match(seen.path.name):
        return 0.92
    return 0.0


def _says_torch_dist(seen: Look) -> bool:
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
    builder = dcp.begin_dcp(path, split=_pieces)
    beside = builder.part()
    _check_shards(builder, beside)
    if CONFIG in builder.names:
        _check_config(beside)
    elif not builder.interrupted:
        builder.interrupted = f"{path / CONFIG}: is missing; Megatron writes it last"
        builder.complete = False
    if COMMON in builder.names:
        _add_common(beside)
    if INTEGRITY in builder.names:
        _add_promises(beside)
    beside.notes += _tracker_notes(path)
    dcp.know_world_size(builder, _argument((*beside.fields, *builder.fields), "world_size"))
    return dcp.finish(builder, NAME, beside=beside)


def _pieces(key: str, value: Any, contents: Contents) -> Iterator[Piece]:
    """A ShardedObject is stored as a list of one; the common state is several pieces of state."""
    shard = _SHARD.match(key)
    if shard is not None and isinstance(value, list) and len(value) == 1:
        value = value[0]
    if shard is not None and shard[1] == COMMON_KEY and isinstance(value, Mapping):
        yield from common_pieces(value)
        return
    kind = field_kind(key)
    if kind == "fp8":
        value = _fp8_state(value, contents)
    yield Piece(key=key, value=value, kind=kind)


def common_pieces(common: Mapping[Any, Any]) -> Iterator[Piece]:
    """The pieces of a common state: one a key, and the steps in an optimizer's groups."""
    for key, value in common.items():
        name = f"{COMMON_KEY}.{inert.plain_text(key)}"
        yield Piece(
            key=name, value=value, kind=_COMMON_KINDS.get(inert.plain_text(key)) or field_kind(name)
        )
        if key != "optimizer":
            continue
        for leaf in inert.walk(value):
            if leaf.path[-1:] == ("step",):
                path = ".".join(leaf.path)
                yield Piece(key=f"{name}.{path}", value=leaf.value, kind="progress")


def _fp8_state(value: Any, contents: Contents) -> Any:
    """Transformer Engine's extra state, a pickle in a byte tensor, opened.

    Only delayed scaling keeps anything in it.
    """
    raw = contents.bytes_of(value) if isinstance(value, TensorRef) else value
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


def _check_config(beside: CheckpointBuilder) -> None:
    path = beside.path / CONFIG
    try:
        backend = read_json(path).get("sharded_backend")
    except EvidenceError as error:
        beside.failed(error)
        return
    if backend != "torch_dist":
        _wrong(beside, f"{path}: sharded_backend: expected torch_dist, found {backend!r:.80}")


def _check_shards(builder: CheckpointBuilder, beside: CheckpointBuilder) -> None:
    """Every ShardedObject names how many shards there are of it."""
    held: dict[tuple[str, str], set[str]] = {}
    for field in builder.fields:
        shard = _SHARD.match(field.name)
        if shard is not None:
            held.setdefault((shard[1], shard[3]), set()).add(shard[2])
    for (name, shape), offsets in held.items():
        sizes = shape.split(".")
        if not all(size.isdecimal() and len(size) < 10 for size in sizes):
            continue  # old checkpoints do not state the last size
        expected = math.prod(map(int, sizes))
        if len(offsets) != expected:
            _wrong(
                beside,
                f"{name}: {len(offsets)} of its {expected} shards are there ({some(offsets)})",
            )


def _wrong(beside: CheckpointBuilder, sentence: str) -> None:
    beside.problems.append(sentence)
    beside.complete = False


def _add_common(beside: CheckpointBuilder) -> None:
    """Take the common state of older versions, which is a file of its own."""
    source = Source(path=beside.path / COMMON, relative=COMMON)
    file = opened(beside, source)
    if file is None:
        return
    add_file(beside, file, source)
    if isinstance(file.value, Mapping):
        for piece in common_pieces(file.value):
            add_piece(beside, piece, COMMON, source.contents)


def _add_promises(beside: CheckpointBuilder) -> None:
    """Take the SHA-256 of each file that `integrity.json` vouches for."""
    path = beside.path / INTEGRITY
    try:
        value = read_json(path)
    except EvidenceError as error:
        beside.failed(error)
        return
    algorithm, listed = value.get("algorithm", "sha256"), value.get("files")
    if algorithm != "sha256" or not isinstance(listed, dict):
        _wrong(beside, f"{path}: expected SHA-256 digests by file, found {algorithm!r:.80}")
        return
    digests: dict[str, str] = {}
    for name, digest in listed.items():
        if is_inside(name) and isinstance(digest, str) and _SHA256.fullmatch(digest):
            digests[name] = digest
    if len(digests) != len(listed):
        broken = some(listed.keys() - digests.keys())
        _wrong(beside, f"{path}: {broken}: no file in this folder, or no SHA-256")
    held = {file.path for file in beside.files}
    missing = [name for name in digests if name not in held]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        _wrong(beside, f"{path}: promises {some(missing)}, which {are} not there")
    for name, digest in digests.items():
        beside.promises.append(Promise(path=name, algorithm="sha256", digest=digest))


def _tracker_notes(path: Path) -> list[str]:
    tracker = path.parent / TRACKER
    try:
        if not tracker.is_file():
            return []
        text = read_bytes(tracker)[:100].decode("ascii", "replace").strip()
    except (EvidenceError, OSError):
        return [f"{tracker}: cannot be read"]
    own = path.name
    for stated in dcp.step_of_name(path.name):
        own = str(stated.step)
    if text == own:
        return []
    return [
        f"{tracker}: names {text!r}, not this checkpoint ({own}); a pointer, which proves "
        "nothing either way"
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
