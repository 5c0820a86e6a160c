"""The records of a torch.save archive: a zip of stored entries, with every bound checked.

This module never inflates anything and never reads a record's data: it says where it lies and what
its CRC should be.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from spiketriage.errors import CorruptFileError, CutArchiveError, EvidenceError

LOCAL = b"PK\x03\x04"
_MAX_DIRECTORY_BYTES = 256 << 20
_TAIL_BYTES = 4096  # holds the whole directory of a one-tensor archive
_SEARCHED_BYTES = 1 << 20
_END = struct.Struct("<4s4H2IH")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_LOCAL = struct.Struct("<4s5H3I2H")
_SENTINEL16, _SENTINEL32 = 0xFFFF, 0xFFFFFFFF


class Descriptor(Protocol):
    """An open file."""

    def fileno(self) -> int:
        """Its descriptor."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ZipRecord:
    """One stored record: where its data lie, and its CRC-32, None where the writer left it out."""

    name: str
    start: int
    end: int
    crc32: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """The records of an archive by place, and what is wrong with it, one sentence each."""

    records: tuple[ZipRecord, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    name: str
    header: int
    size_bytes: int
    stored: bool
    crc32: int


@dataclass(slots=True, kw_only=True)
class _Source:
    """The bytes `start` to `end` of an open file; positions are relative to `start`."""

    descriptor: int
    start: int
    end: int
    where: object
    problems: list[str] = field(default_factory=list)

    def read(self, at: int, size_bytes: int) -> bytes:
        if at < 0 or at + size_bytes > self.end - self.start:
            raise self.wrong(
                f"byte {at}", f"{size_bytes} bytes", f"the archive's end at {self.end - self.start}"
            )
        try:
            data = os.pread(self.descriptor, size_bytes, self.start + at)
        except OSError as error:
            raise EvidenceError(
                f"{self.where}: cannot be read: {error.strerror or error}"
            ) from error
        if len(data) != size_bytes:
            raise self.wrong(f"byte {at}", f"{size_bytes} bytes", f"{len(data)}")
        return data

    def wrong(self, what: str, expected: object, seen: object) -> CorruptFileError:
        return CorruptFileError(self.where, f"zip archive, {what}", expected=expected, seen=seen)


def read_archive(stream: Descriptor, start: int, end: int, *, where: object) -> Archive:
    """The records of the archive that fills the bytes `start` to `end` of `stream`.

    Raises:
        CutArchiveError: it has no end-of-archive record (a truncated file).
        CorruptFileError: the directory cannot be read.
        EvidenceError: the file cannot be read.
    """
    source = _Source(descriptor=stream.fileno(), start=start, end=end, where=where)
    tail = source.read(max(0, end - start - _SEARCHED_BYTES), min(end - start, _SEARCHED_BYTES))
    at = _end_record(source, tail)
    directory_at, directory = _directory(source, tail, at)
    entries = sorted(_entries(source, directory), key=lambda entry: entry.header)
    records: dict[str, ZipRecord] = {}
    names: set[str] = set()  # torch finds a record by its name in any case
    previous = 0
    for entry in entries:
        try:
            record = _record(source, entry)
            if entry.header < previous or record.end - start > directory_at:
                raise source.wrong(
                    f"record {entry.name}", "records that do not overlap", f"one at {entry.header}"
                )
            if entry.name.lower() in names:
                raise source.wrong(f"record {entry.name}", "one record of that name", "two")
        except CorruptFileError as error:
            source.problems.append(error.message)
            continue
        previous = record.end - start
        names.add(entry.name.lower())
        records[entry.name] = record
    return Archive(records=tuple(records.values()), problems=tuple(source.problems))


def data_record(
    stream: Descriptor, start: int, end: int, *, where: object = "torch.save slice"
) -> ZipRecord:
    """The one tensor record (`…/data/0`) of an archive that fills the bytes `start` to `end`.

    Raises:
        CorruptFileError: it has none, or is damaged.
        EvidenceError: the file cannot be read.
    """
    source = _Source(descriptor=stream.fileno(), start=start, end=end, where=where)
    size_bytes = end - start
    tail = source.read(max(0, size_bytes - _TAIL_BYTES), min(size_bytes, _TAIL_BYTES))
    if len(tail) < _END.size or not tail.startswith(b"PK\x05\x06", len(tail) - _END.size):
        raise CutArchiveError(
            where, f"bytes {start} to {end}", expected="a zip archive that ends there", seen="none"
        )
    _, directory = _directory(source, tail, len(tail) - _END.size)
    entries = [entry for entry in _entries(source, directory) if entry.name.endswith("/data/0")]
    if len(entries) != 1:
        raise source.wrong("directory", "one record data/0", len(entries))
    return _record(source, entries[0])


def _end_record(source: _Source, tail: bytes) -> int:
    at = tail.rfind(b"PK\x05\x06")
    while at >= 0 and len(tail) - at < _END.size:
        at = tail.rfind(b"PK\x05\x06", 0, at)
    if at < 0:
        raise CutArchiveError(
            source.where, "end", expected="the end record of a zip archive", seen="none: truncated"
        )
    surplus = len(tail) - at - _END.size
    if surplus:
        source.problems.append(f"{source.where}: {surplus} bytes follow the end of the archive")
    return at


def _directory(source: _Source, tail: bytes, at: int) -> tuple[int, bytes]:
    """Where the central directory lies, and its bytes; the end record is at `at` in `tail`."""
    _, disk, _, _, count, size_bytes, offset, _ = _END.unpack_from(tail, at)
    shift = source.end - source.start - len(tail)
    if _SENTINEL16 in (count, disk) or _SENTINEL32 in (size_bytes, offset):
        locator = _LOCATOR.unpack(source.read(shift + at - _LOCATOR.size, _LOCATOR.size))
        if locator[0] != b"PK\x06\x07":
            raise source.wrong("end", "a zip64 locator", locator[0])
        end64 = _END64.unpack(source.read(locator[2], _END64.size))
        if end64[0] != b"PK\x06\x06":
            raise source.wrong("end", "a zip64 end record", end64[0])
        count, size_bytes, offset = end64[7:]
    if size_bytes > _MAX_DIRECTORY_BYTES or count * _CENTRAL.size > size_bytes:
        raise source.wrong(
            "end", f"{count} records in at most {_MAX_DIRECTORY_BYTES} bytes", f"{size_bytes} bytes"
        )
    low = offset - shift
    if low >= 0 and low + size_bytes <= at:
        return offset, tail[low : low + size_bytes]
    if offset + size_bytes > shift + at:
        raise source.wrong(
            "directory", "it before the end record", f"it at {offset} to {offset + size_bytes}"
        )
    return offset, source.read(offset, size_bytes)


def _entries(source: _Source, directory: bytes) -> Iterator[_Entry]:
    at = 0
    while at < len(directory):
        if at + _CENTRAL.size > len(directory):
            raise source.wrong("directory", "whole entries", f"{len(directory) - at} bytes left")
        part = _CENTRAL.unpack_from(directory, at)
        flags, method, header = part[3], part[4], part[16]
        crc32, packed, size_bytes, name_len, extra_len, comment_len = part[7:13]
        end = at + _CENTRAL.size + name_len + extra_len + comment_len
        if part[0] != b"PK\x01\x02" or end > len(directory):
            raise source.wrong("directory", "a whole entry", f"{part[0]!r} at {at}")
        names_end = at + _CENTRAL.size + name_len
        name = directory[at + _CENTRAL.size : names_end].decode("utf-8", "backslashreplace")
        if _SENTINEL32 in (packed, size_bytes, header):
            extra = directory[names_end : names_end + extra_len]
            size_bytes, packed, header = _wide(source, name, extra, (size_bytes, packed, header))
        stored = method == 0 and packed == size_bytes and not flags & 1
        yield _Entry(name=name, header=header, size_bytes=size_bytes, stored=stored, crc32=crc32)
        at = end


def _wide(
    source: _Source, name: str, extra: bytes, narrow: tuple[int, int, int]
) -> tuple[int, int, int]:
    """The sizes and the place of an entry, those that do not fit 32 bits from its zip64 field."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        body = extra[at + 4 : at + 4 + length]
        if kind == 1:
            wide = iter(struct.unpack(f"<{len(body) // 8}Q", body[: len(body) // 8 * 8]))
            values = [next(wide, -1) if value == _SENTINEL32 else value for value in narrow]
            if min(values) < 0:
                break
            return values[0], values[1], values[2]
        at += 4 + length
    raise source.wrong(f"record {name}", "its 64-bit sizes", "none")


def _record(source: _Source, entry: _Entry) -> ZipRecord:
    """The record of an entry, placed by its local header: the central one is padded otherwise."""
    if not entry.stored:
        raise source.wrong(
            f"record {entry.name}", "a stored record", "a compressed or encrypted one"
        )
    part = _LOCAL.unpack(source.read(entry.header, _LOCAL.size))
    if part[0] != LOCAL or part[3]:
        raise source.wrong(
            f"record {entry.name}", f"a local header of stored data at {entry.header}", part[0]
        )
    at = entry.header + _LOCAL.size + part[9] + part[10]
    if at + entry.size_bytes > source.end - source.start:
        raise source.wrong(
            f"record {entry.name}", f"{entry.size_bytes} bytes at {at}", "the end of the archive"
        )
    crc32: int | None = entry.crc32
    if crc32 == 0 and entry.size_bytes:
        crc32 = None  # the writer computed none
    start = source.start + at
    return ZipRecord(name=entry.name, start=start, end=start + entry.size_bytes, crc32=crc32)
