"""Finds the storages that a truncated torch.save archive, whose directory is lost, still holds.

This module never reads a storage's bytes and never guesses: a record is found where the one before
it ends.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import BinaryIO

from spiketriage.readers.checkpoints.files.torch_values import Storage
from spiketriage.readers.checkpoints.files.zip_records import LOCAL, ZipRecord

_DESCRIPTOR = b"PK\x07\x08"
# a descriptor, the small records without a size of their own, the next header with its padding
_WINDOW_BYTES = 4096


def surviving(
    stream: BinaryIO, at: int, end: int, storages: Mapping[str, Storage]
) -> Iterator[ZipRecord]:
    """The whole storage records between the bytes `at`, where data.pkl ends, and `end`.

    Local headers leave the sizes out; those of `storages` come from the pickle, those of other
    records do not matter.
    """
    while at < end:
        window = os.pread(stream.fileno(), min(_WINDOW_BYTES, end - at), at)
        header = window.find(LOCAL)
        if header < 0 or header + 30 > len(window):
            return
        name_len = int.from_bytes(window[header + 26 : header + 28], "little")
        extra_len = int.from_bytes(window[header + 28 : header + 30], "little")
        name = window[header + 30 : header + 30 + name_len].decode("utf-8", "backslashreplace")
        at += header + 30 + name_len + extra_len
        key = name.rpartition("/data/")[2] if "/data/" in name else ""
        if key not in storages:
            continue
        start, at = at, at + storages[key].size_bytes
        if at > end:
            return
        yield ZipRecord(name=name, start=start, end=at, crc32=_checksum(stream, at, end))


def _checksum(stream: BinaryIO, at: int, end: int) -> int | None:
    """The CRC-32 in the descriptor that follows a record, if it is there and was computed."""
    if at + 8 > end:
        return None
    data = os.pread(stream.fileno(), 8, at)
    if data.startswith(_DESCRIPTOR):
        return int.from_bytes(data[4:], "little") or None
    return None
