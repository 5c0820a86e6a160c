"""The process that copies evidence: `python -m spiketriage.evidence.collect`, its job on stdin.

It runs apart so that a read that never returns costs its collector only; it never opens a source
for writing.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import xxhash

from spiketriage.digests import read_pass
from spiketriage.durable import FULL, write
from spiketriage.errors import EvidenceError, PartialError
from spiketriage.evidence import layout
from spiketriage.evidence.collectors import COLLECTORS, Item
from spiketriage.evidence.measured import kept, to_json
from spiketriage.nouns.incident import Artifact, RunSettings
from spiketriage.readers.checkpoints.generations import read_generation, read_generations
from spiketriage.readers.settings import read_settings

# not a copy but a measurement: digest and finiteness of candidate generations
GENERATIONS = "generations"
NUM_CANDIDATES = 2
ALIVE_BYTES = 1 << 26
BLOCK_BYTES = 512  # in which st_blocks counts, whatever the file system's own are
# The run may need the disk to save itself: a twentieth of it, at most a gigabyte, stays free.
RESERVE_SHARE, MAX_RESERVE_BYTES = 20, 1 << 30
SMALL_BYTES = 1 << 20  # tried in any case; a disk that takes not even these is full
MAX_COPY_BYTES = 1 << 36  # 64 GiB: of a larger log nobody waits for the copy


def main() -> None:
    """Run the named collectors in order; every line on stdout is one JSON object."""
    job = json.loads(sys.stdin.read())
    settings = read_settings(Path(job["run"]))
    target = Path(job["payload"])
    by_name = {collector.name: collector for collector in COLLECTORS}
    sources: dict[str, Path] = {}
    for name in job["collectors"]:
        tell(begin=name)
        try:
            if name == GENERATIONS:
                measure(settings, job["onset"])
            else:
                for item in by_name[name].items(settings):
                    keep(settings, target, item, sources)
        except EvidenceError as error:
            tell(gap=name, note=error.message)
        except OSError as error:  # a look at a folder, say, that is not ours to look at
            tell(gap=name, note=f"{error.filename}: {error.strerror or error}")
        tell(end=name)


def tell(**line: object) -> None:
    """Write one line for the parent, at once."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def keep(settings: RunSettings, target: Path, item: Item, sources: dict[str, Path]) -> None:
    """Copy one item and tell the artifact; what cannot be copied is told as missing.

    `sources` are those of the copies so far, by name: no copy ever takes the place of another.
    """
    name = layout.copy_name(settings, item.kind, item.source)
    assert name is not None, "every collector lists kinds that are copied"
    path = layout.artifact_path(settings.run, item.source)
    try:
        _require_own(settings.run, item, sources.setdefault(name, item.source))
        artifact, sha256 = copy(item, target / name, path, drafts=target.with_name(layout.DRAFTS))
    except (OSError, PartialError) as error:
        why = error if isinstance(error, OSError) else error.__cause__
        if isinstance(why, OSError) and why.errno in FULL:
            tell(
                full=str(target / name),
                size_bytes=item.source.stat().st_size if item.content is None else 0,
            )
            raise SystemExit(1) from error
        tell(artifact=asdict(missing(path, item.kind, f"cannot be copied: {why}")))
        return
    except EvidenceError as error:
        tell(artifact=asdict(missing(path, item.kind, error.message)))
        return
    tell(artifact=asdict(artifact), copy=name, sha256=sha256)


def _require_own(run: Path, item: Item, first: Path) -> None:
    """Refuse what is not the run's own, and what would replace another copy.

    Raises:
        EvidenceError: the source is a link out of the run, or its copy has another's name.
    """
    if first != item.source:
        raise EvidenceError(f"not copied: the copy of {first} has the same name")
    if item.content is not None or not item.source.is_relative_to(run):
        return
    try:
        place = item.source.resolve()
    except (OSError, RuntimeError):  # a link to itself: whoever opens it says so
        return
    if not place.is_relative_to(run.resolve()):
        raise EvidenceError(f"not copied: is a link out of the run, to {place}")


def missing(path: str, kind: str, note: str) -> Artifact:
    """The artifact of something that could not be kept."""
    return Artifact(
        path=path,
        kind=kind,
        size_bytes=0,
        mtime_ns=0,
        digest="",
        expected="",
        kept="missing",
        note=note,
    )


def copy(item: Item, target: Path, path: str, *, drafts: Path) -> tuple[Artifact, str]:
    """Copy and digest in one read pass; a copy of the same size and time is digested where it is.

    Raises:
        EvidenceError: the source cannot be read or is not a regular file.
        OSError, PartialError: the copy cannot be written; the cause of the latter is an OSError.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    quick, slow = xxhash.xxh3_128(), hashlib.sha256()
    note = ""
    if item.content is not None:
        for state in (quick, slow):
            state.update(item.content)
        size_bytes, mtime_ns = len(item.content), 0
        write(target, item.content)
    else:
        status = _regular(item.source)
        size_bytes, mtime_ns = status.st_size, status.st_mtime_ns
        if not _is_copy(target, status):
            size_bytes = stream_copy(item.source, target, (quick, slow), drafts=drafts)
            if size_bytes == status.st_size:
                note = ""
            else:
                note = "grew or shrank while it was copied"
        else:
            read_pass(target, (quick.update, slow.update))
    artifact = Artifact(
        path=path,
        kind=item.kind,
        size_bytes=size_bytes,
        mtime_ns=mtime_ns,
        digest=quick.hexdigest(),
        expected="",
        kept="copied",
        note=note,
    )
    return artifact, slow.hexdigest()


def _regular(source: Path) -> os.stat_result:
    try:
        status = source.stat()
    except OSError as error:
        raise EvidenceError(f"cannot be read: {error.strerror or error}") from error
    if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for a writer
        raise EvidenceError("is not a regular file")
    return status


def _is_copy(target: Path, status: os.stat_result) -> bool:
    try:
        held = target.stat()
    except FileNotFoundError:
        return False
    return (held.st_size, held.st_mtime_ns) == (status.st_size, status.st_mtime_ns)


def stream_copy(source: Path, target: Path, states: tuple[Any, ...], *, drafts: Path) -> int:
    """Read `source` once: digest it into `states` and write it to `target`, synced.

    Returns the number of bytes.

    Raises:
        EvidenceError: the source cannot be read.
        OSError, PartialError: the copy cannot be written; the cause of the latter is an OSError.
    """
    status = source.stat()
    has_holes = status.st_blocks * BLOCK_BYTES < status.st_size
    _require_room(target.parent, status)
    drafts.mkdir(exist_ok=True)
    draft = drafts / "copy"  # not beside the copies: the run may have a file of any name
    try:
        count = _write_draft(source, draft, states, has_holes=has_holes, status=status)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    os.utime(draft, ns=(status.st_mtime_ns, status.st_mtime_ns))
    draft.replace(target)
    return count


def _write_draft(
    source: Path,
    draft: Path,
    states: tuple[Any, ...],
    *,
    has_holes: bool,
    status: os.stat_result,
) -> int:
    """Write the draft of a copy, synced, its holes as holes, and return its number of bytes."""
    since_alive = 0
    mode = stat.S_IMODE(status.st_mode) & 0o666 | stat.S_IRUSR  # a secret stays one
    with draft.open("wb") as stream:
        os.fchmod(stream.fileno(), mode)
        if not has_holes:
            _reserve(stream.fileno(), status.st_size)

        def alive(chunk: memoryview) -> None:
            nonlocal since_alive
            try:
                if has_holes and not any(chunk):
                    stream.seek(len(chunk), os.SEEK_CUR)
                else:
                    stream.write(chunk)
            except OSError as error:
                # told apart from an error of reading, which costs this item only
                raise PartialError(f"{draft}: cannot be written: {error}") from error
            since_alive += len(chunk)
            if since_alive > ALIVE_BYTES:
                since_alive = 0
                tell(alive=str(source))

        count = read_pass(source, (*(state.update for state in states), alive))
        stream.flush()
        stream.truncate(count)
        os.fsync(stream.fileno())
    return count


def _require_room(folder: Path, status: os.stat_result) -> None:
    """Refuse a copy that the disk has no room for, or that nobody would read to its end.

    Raises:
        EvidenceError: it is too large.
    """
    if status.st_size > MAX_COPY_BYTES:
        raise EvidenceError(
            f"not copied: {status.st_size} bytes, of which {status.st_blocks * BLOCK_BYTES} are "
            f"on the disk; at most {MAX_COPY_BYTES} are copied"
        )
    needed_bytes = min(status.st_size, status.st_blocks * BLOCK_BYTES)
    disk = os.statvfs(folder)
    reserve_bytes = min(MAX_RESERVE_BYTES, disk.f_blocks * disk.f_frsize // RESERVE_SHARE)
    free_bytes = disk.f_bavail * disk.f_frsize
    if needed_bytes > SMALL_BYTES and needed_bytes > free_bytes - reserve_bytes:
        raise EvidenceError(
            f"not copied: {needed_bytes} bytes, and the disk of {folder} has {free_bytes} left, of "
            f"which {reserve_bytes} are kept for the run"
        )


def _reserve(handle: int, num_bytes: int) -> None:
    """Ask for the space at once.

    It fails early on a full disk, and is a quarter faster:
    docs/design-reasons.md#buffers-and-pieces.
    """
    if not num_bytes:
        return
    try:
        os.posix_fallocate(handle, 0, num_bytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise


def measure(settings: RunSettings, onset: int | None) -> None:
    """Tell every generation; verify the newest ones older than the onset until two are sound."""
    num_sound = 0
    for generation in reversed(read_generations(settings.checkpoints, verify=False)):
        facts, step = generation, generation.step
        verify = num_sound < NUM_CANDIDATES and (onset is None or step is None or step < onset)
        if verify:
            facts = read_generation(settings.checkpoints, generation.name, verify=True)
            num_sound += facts.complete and not facts.problems and not facts.nonfinite
        tell(generation=to_json(kept(facts)))


if __name__ == "__main__":
    main()
