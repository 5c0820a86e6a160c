"""Reads what torch.save wrote, without torch: inert values, and tensors as places in the file.

This module never reads a tensor's bytes and never imports what the pickle names.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from spiketriage.digests import open_regular
from spiketriage.errors import CorruptFileError, CutArchiveError, EvidenceError
from spiketriage.nouns.checkpoint import Extent
from spiketriage.readers import pickles
from spiketriage.readers.checkpoints.files import torch_legacy
from spiketriage.readers.checkpoints.files.torch_salvage import surviving
from spiketriage.readers.checkpoints.files.torch_values import Place, TensorRef, Tensors
from spiketriage.readers.checkpoints.files.zip_records import (
    LOCAL,
    Archive,
    ZipRecord,
    data_record,
    read_archive,
)
from spiketriage.readers.limited import limited
from spiketriage.readers.look import refuse_pointer

__all__ = ["TensorRef", "TorchFile", "ZipRecord", "data_record", "extents", "read_torch_file"]

_HEAD_BYTES = 512
# of a truncated archive's first record, whose size is in the lost directory
_SALVAGED_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFile:
    """One torch.save file: `value` holds plain containers, scalars, `Stub`s and `TensorRef`s.

    `problems` are sentences about damage; what could be read in spite of it is here. It is `whole`
    when the file's end is there and every storage lies in it.
    """

    value: Any
    globals: tuple[str, ...]
    records: tuple[ZipRecord, ...]
    problems: tuple[str, ...]
    whole: bool = True


@limited
def read_torch_file(path: Path, *, start: int = 0, end: int | None = None) -> TorchFile:
    """The torch.save file at `path`, or the one in its bytes `start` to `end`, whatever its format.

    Raises:
        CorruptFileError: not even its pickle can be read.
        EvidenceError: the file cannot be read.
    """
    try:
        with open_regular(path) as stream:
            size_bytes = os.fstat(stream.fileno()).st_size
            end = size_bytes if end is None else end
            if (start, end) == (0, size_bytes):
                where = str(path)
            else:
                where = f"{path} [{start}:{end}]"
            if not 0 <= start <= end <= size_bytes:
                raise CorruptFileError(
                    path, f"bytes {start} to {end}", expected=f"{size_bytes} at most", seen="more"
                )
            return _read(stream, start, end, where)
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read: {error.strerror or error}") from error


def extents(file: TorchFile, path: str, label: Callable[[ZipRecord], str]) -> tuple[Extent, ...]:
    """What the archive itself vouches for; `label` names a record for a person."""
    vouched: list[Extent] = []
    for record in file.records:
        if record.crc32 is None or record.end <= record.start:
            continue
        vouched.append(
            Extent(
                path=path,
                start=record.start,
                end=record.end,
                crc32=record.crc32,
                name=label(record),
            )
        )
    return tuple(vouched)


def _read(stream: BinaryIO, start: int, end: int, where: str) -> TorchFile:
    head = os.pread(stream.fileno(), min(_HEAD_BYTES, end - start), start)
    if not head:
        raise CorruptFileError(where, "size", expected="a torch.save file", seen="0 bytes")
    refuse_pointer(where, head)
    if head.startswith(LOCAL):
        try:
            archive = read_archive(stream, start, end, where=where)
        except CutArchiveError as error:
            return _salvaged(stream, start, end, where, error.message)
        return _from_archive(stream, archive, where)
    if torch_legacy.is_legacy(head):
        legacy = torch_legacy.read(stream, start, end, where)
        return TorchFile(
            value=legacy.value,
            globals=legacy.globals,
            records=(),
            problems=legacy.problems,
            whole=legacy.whole,
        )
    if end - start > pickles.MAX_BYTES:
        raise CorruptFileError(
            where, "size", expected=f"a pickle of at most {pickles.MAX_BYTES}", seen=end - start
        )
    plain = pickles.load_here(os.pread(stream.fileno(), end - start, start), where=where)
    surplus = end - start - plain.end
    problems = []
    if surplus:
        problems.append(f"{where}: {surplus} bytes follow the pickle")
    return TorchFile(
        value=plain.value, globals=plain.globals, records=(), problems=tuple(problems), whole=True
    )


def _from_archive(stream: BinaryIO, archive: Archive, where: str) -> TorchFile:
    problems = list(archive.problems)
    pickled = [record for record in archive.records if record.name.rpartition("/")[2] == "data.pkl"]
    if len(pickled) != 1:
        raise CorruptFileError(
            where, "zip archive", expected="one record data.pkl", seen=len(pickled)
        )
    root = pickled[0].name.removesuffix("data.pkl")
    named = {record.name: record for record in archive.records}
    order = named.get(f"{root}byteorder")
    if order is not None and _bytes_of(stream, order, where) == b"big":
        raise CorruptFileError(
            where, "byteorder", expected="little-endian elements", seen="big-endian ones"
        )
    data = _bytes_of(stream, pickled[0], where)
    if pickled[0].crc32 not in (None, zlib.crc32(data)):
        problems.append(
            f"{where}: record data.pkl: expected CRC {pickled[0].crc32:08x}, found "
            f"{zlib.crc32(data):08x}"
        )
    prefix = f"{root}data/"
    places = {}
    for name, record in named.items():
        if name.startswith(prefix):
            key = name.removeprefix(prefix)
            places[key] = Place(start=record.start, end=record.end)
    tensors = Tensors(places=places)
    loaded = pickles.load_here(
        data, where=where, persistent=tensors.persistent, rebuild=tensors.rebuilders()
    )
    problems += [f"{where}: {problem}" for problem in tensors.problems]
    return TorchFile(
        value=loaded.value,
        globals=loaded.globals,
        records=archive.records,
        problems=tuple(problems),
        whole=not tensors.problems,
    )


def _bytes_of(stream: BinaryIO, record: ZipRecord, where: str) -> bytes:
    size_bytes = record.end - record.start
    if size_bytes > pickles.MAX_BYTES:
        raise CorruptFileError(
            where, record.name, expected=f"at most {pickles.MAX_BYTES} bytes", seen=size_bytes
        )
    return os.pread(stream.fileno(), size_bytes, record.start)


def _salvaged(stream: BinaryIO, start: int, end: int, where: str, problem: str) -> TorchFile:
    """What a truncated archive still holds: names, dtypes and shapes, and the storages before."""
    data = os.pread(stream.fileno(), min(_SALVAGED_BYTES, end - start), start)
    name_len = int.from_bytes(data[26:28], "little")
    extra_len = int.from_bytes(data[28:30], "little")
    name = data[30 : 30 + name_len].decode("utf-8", "backslashreplace")
    if not name.endswith("data.pkl"):
        raise CorruptFileError(
            where, "zip archive", expected="its end, or data.pkl in front", seen="neither"
        )
    at = 30 + name_len + extra_len
    body = memoryview(data)[at:]
    first = Tensors()
    loaded = pickles.load_here(
        body, where=where, persistent=first.persistent, rebuild=first.rebuilders()
    )
    records = tuple(surviving(stream, start + at + loaded.end, end, first.storages))
    places = {}
    for record in records:
        places[record.name.rpartition("/")[2]] = Place(start=record.start, end=record.end)
    tensors = Tensors(places=places)
    again = pickles.load_here(
        body[: loaded.end], where=where, persistent=tensors.persistent, rebuild=tensors.rebuilders()
    )
    kept = f"{where}: {len(places)} of {len(first.storages)} storages lie before the cut"
    return TorchFile(
        value=again.value,
        globals=again.globals,
        records=records,
        problems=(problem, kept),
        whole=False,
    )
