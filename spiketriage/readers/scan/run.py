"""Measures whole files and checkpoints on any `concurrent.futures` executor.

This module never decides what a number means, and never raises for bytes that are damaged: it says
which.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

from spiketriage.nouns.checkpoint import CheckpointFacts, Measurement
from spiketriage.nouns.file import FileDigest
from spiketriage.readers.scan.merge import broken_promises, damage, file_digests, tensor_stats
from spiketriage.readers.scan.piece import Piece, PieceFacts, scan_piece
from spiketriage.readers.scan.plan import FilePlan, plan
from spiketriage.readers.scan.spread import not_measured, spread
from spiketriage.readers.scan.work import size_of, work_of


def digest_files(
    paths: Iterable[Path], *, executor: Executor | None = None
) -> tuple[FileDigest, ...]:
    """The tree digest of each file, in the order given.

    A file that cannot be read has an empty one.

    `executor` is any `concurrent.futures` executor whose workers see the same paths; by default
    threads, one a core.
    """
    plans = [FilePlan(path=str(path), size_bytes=size_of(path)) for path in paths]
    facts = _run(plan(plans, is_full=False).pieces, executor)
    found = {digest.path: digest for digest in file_digests(facts)}
    nothing = {
        one.path: FileDigest(path=one.path, size_bytes=0, digest="", pieces=()) for one in plans
    }
    return tuple(found.get(one.path, nothing[one.path]) for one in plans)


def measure(
    facts: CheckpointFacts,
    *,
    is_full: bool,
    is_digested: bool = True,
    executor: Executor | None = None,
) -> Measurement:
    """Read every byte of a checkpoint once: digests, vouched ranges, counts over its tensors.

    A quick scan (`is_full` False) counts nonfinite elements and finds the largest; a full one adds
    norm, zeros, negatives and FP8 saturation. Digests are of use only where they can be compared
    with something.
    """
    work = work_of(facts)
    cut = plan(work.files.values(), is_full=is_full, is_digested=is_digested)
    pieces = _run((*cut.pieces, *cut.extra), executor)
    whole = pieces[: len(cut.pieces)]
    problems = [*work.problems, *dict.fromkeys(one.problem for one in pieces if one.problem)]
    relative = {file.path: name for name, file in work.files.items()}
    digests = [
        FileDigest(
            path=relative[one.path], size_bytes=one.size_bytes, digest=one.digest, pieces=one.pieces
        )
        for one in file_digests(whole)
    ]
    return Measurement(
        files=tuple(digests),
        stats=tensor_stats(facts, work, pieces, is_full=is_full),
        damage=(*damage(work, pieces), *broken_promises(facts, work, whole)),
        problems=tuple(problems),
    )


def _run(pieces: Sequence[Piece], executor: Executor | None) -> list[PieceFacts]:
    if executor is not None:
        return list(spread(scan_piece, pieces, executor, lost=_lost))
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as threads:
        return list(threads.map(scan_piece, pieces))


def _lost(piece: Piece, reason: str) -> PieceFacts:
    return PieceFacts(
        path=piece.path,
        start=piece.start,
        num_bytes=0,
        digest=b"",
        other="",
        crcs=(),
        counted=(),
        problem=not_measured(piece.path, reason),
    )
