"""Damage to the checkpoints of other people's trainers, placed with the real libraries or by the format's description.

None of it goes through a reader of the project: what the tests expect is found by an independent
route.
"""

from __future__ import annotations

import io
import json
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

LFS_POINTER = (
    b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 123456\n"
)
CENTRAL = b"PK\x01\x02"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Bytes of a tensor in a file.

    `archive` is where the zip around them starts, None where there is none.
    """

    path: Path
    start: int
    end: int
    archive: tuple[int, int] | None = None

    def flip(self) -> None:
        """Flip one low bit in the middle: the value stays finite and plausible."""
        middle = self.start + (self.end - self.start) // 8 * 4
        _rewrite(self.path, middle, lambda byte: bytes([byte[0] ^ 1]), 1)

    def put(self, value: float) -> None:
        """Replace the first float32 and make the archive's CRC right again."""
        assert self.archive is not None
        _rewrite(self.path, self.start, lambda _: struct.pack("<f", value), 4)
        data = self.path.read_bytes()
        crc = zlib.crc32(data[self.start : self.end])
        begin, end = self.archive
        record = _record_at(data[begin:end], self.start - begin)
        at = data.index(record.filename.encode(), data.index(CENTRAL, begin)) - 46
        assert data[at : at + 4] == CENTRAL
        _rewrite(self.path, at + 16, lambda _: struct.pack("<I", crc), 4)


def in_safetensors(path: Path, name: str) -> Place:
    """A tensor of a safetensors file, by its header."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    start, end = json.loads(data[8 : 8 + size])[name]["data_offsets"]
    return Place(path=path, start=8 + size + start, end=8 + size + end)


def in_torch_file(path: Path, key: str) -> Place:
    """The storage `key` of a torch.save file."""
    data = path.read_bytes()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        record = next(one for one in archive.infolist() if one.filename.endswith(f"/data/{key}"))
    start = _data_of(data, record)
    return Place(path=path, start=start, end=start + record.file_size, archive=(0, len(data)))


def in_dcp(folder: Path, name: str, chunk: int = 0) -> Place:
    """A chunk of a tensor in a torch DCP folder, where torch itself would look for it."""
    from torch.distributed.checkpoint import FileSystemReader

    places = FileSystemReader(folder).read_metadata().storage_data
    own = sorted((index.offset, info) for index, info in places.items() if index.fqn == name)
    info = own[chunk][1]
    path = folder / info.relative_path
    data = path.read_bytes()[info.offset : info.offset + info.length]
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        record = next(one for one in archive.infolist() if one.filename.endswith("/data/0"))
    start = info.offset + _data_of(data, record)
    return Place(
        path=path,
        start=start,
        end=start + record.file_size,
        archive=(info.offset, info.offset + info.length),
    )


def truncate(path: Path) -> None:
    """Lose the last third."""
    with path.open("r+b") as stream:
        stream.truncate(path.stat().st_size * 2 // 3)


def append(path: Path) -> None:
    """Add what does not belong there."""
    with path.open("ab") as stream:
        stream.write(b"\0" * 512)


def point(path: Path) -> None:
    """Leave a Git-LFS pointer where the file was."""
    path.write_bytes(LFS_POINTER)


def swap(one: Path, other: Path) -> None:
    """Exchange two files."""
    kept = one.with_name("kept")
    one.rename(kept)
    other.rename(one)
    kept.rename(other)


def move(path: Path, name: str) -> None:
    """Rename."""
    shutil.move(path, path.with_name(name))


def _rewrite(path: Path, at: int, change: Callable[[bytes], bytes], size: int) -> None:
    with path.open("r+b") as stream:
        stream.seek(at)
        old = stream.read(size)
        stream.seek(at)
        stream.write(change(old))


def _data_of(archive: bytes, record: zipfile.ZipInfo) -> int:
    name, extra = struct.unpack_from("<HH", archive, record.header_offset + 26)
    return record.header_offset + 30 + name + extra


def _record_at(archive: bytes, start: int) -> zipfile.ZipInfo:
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        return next(one for one in opened.infolist() if _data_of(archive, one) == start)
