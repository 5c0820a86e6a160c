"""What disks, half-finished copies and strangers make of a good file or folder, for the tests of every reader.

Each function changes a copy in place; none of them knows a format.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

LFS_POINTER = (
    b"version https://git-lfs.github.com/spec/v1\noid "
    b"sha256:4d7a214614ab2935c943f9e0ff69d22e\nsize 12345\n"
)
PAGE_BYTES = 4096
MAX_ALONE = 2  # files of a folder that are changed one at a time, beside all of them together

Change = Callable[[Path], None]


def _cut(path: Path, *, length: Callable[[int], int]) -> None:
    os.truncate(path, max(length(path.stat().st_size), 0))


def _zero(path: Path, *, start: Callable[[int], int]) -> None:
    size_bytes = path.stat().st_size
    with path.open("r+b") as stream:
        stream.seek(start(size_bytes))
        stream.write(bytes(min(PAGE_BYTES, size_bytes - stream.tell())))


def _append(path: Path) -> None:
    with path.open("ab") as stream:
        stream.write(random.Random(7).randbytes(300))


def _shuffle(path: Path) -> None:
    path.write_bytes(random.Random(8).randbytes(path.stat().st_size))


def _pointer(path: Path) -> None:
    path.write_bytes(LFS_POINTER)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _own_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _missing(path: Path) -> None:
    path.unlink()


FILE_CHANGES: Mapping[str, Change] = {
    "empty": partial(_cut, length=lambda size: 0),
    "one-byte": partial(_cut, length=lambda size: min(size, 1)),
    "seven-bytes": partial(_cut, length=lambda size: min(size, 7)),
    "half": partial(_cut, length=lambda size: size // 2),
    "last-byte-gone": partial(_cut, length=lambda size: size - 1),
    "first-page-zero": partial(_zero, start=lambda size: 0),
    "middle-page-zero": partial(_zero, start=lambda size: size // 2 // 512 * 512),
    "bytes-appended": _append,
    "other-bytes": _shuffle,
    "lfs-pointer": _pointer,
    "folder": _folder,
    "own-link": _own_link,
    "pipe": _pipe,
    "missing": _missing,
}
LOST = (
    "empty",
    "lfs-pointer",
    "folder",
    "own-link",
    "pipe",
    "missing",
)  # after these nothing of a file is left


def _odd_name(folder: Path) -> None:
    for name in (b"\xff\xfe.jsonl", b"\xff\xfe.pt", b"__\xff_0.distcp"):
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_bytes(
            b'{"step": 1, "loss": 2.0}\n'
        )


def _link_loop(folder: Path) -> None:
    (folder / "again").symlink_to("../" + folder.name, target_is_directory=True)
    (folder / "loop.jsonl").symlink_to("loop.pt")
    (folder / "loop.pt").symlink_to("loop.jsonl")


def _pipe_within(folder: Path) -> None:
    for name in ("more.jsonl", "more.pt", "more.safetensors", "rank_9.csv", "model.npy"):
        os.mkfifo(folder / name)


FOLDER_CHANGES: Mapping[str, Change] = {
    "odd-name": _odd_name,
    "link-loop": _link_loop,
    "pipe-within": _pipe_within,
}


def files_below(path: Path) -> list[Path]:
    """The regular files of a copy, itself if it is one."""
    return [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())


def targets(path: Path) -> list[list[Path]]:
    """Which files to change.

    One at a time (the first of each suffix and size), and all together.
    """
    files = files_below(path)
    unlike = {(file.suffix, file.stat().st_size): file for file in reversed(files)}
    alone = sorted(unlike.values(), key=lambda file: -file.stat().st_size)[:MAX_ALONE]
    return [[file] for file in alone] + ([files] if len(files) > 1 else [])
