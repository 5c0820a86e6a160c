"""Measures whole files and checkpoints on any `concurrent.futures` executor.

This module never decides what a number means, and never raises for bytes that are damaged: it says
which.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
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
    """The tree digest of each file, in the order given; empty where a file cannot be read.

    `executor` is any `concurrent.futures` executor whose workers see the same paths; by default
    threads, one a core.
    """
    plans = [FilePlan(path=str(path), size_bytes=size_of(path)) for path in paths]
    facts = _run(plan(plans, is_full=False).pieces, executor)
    measured = {digest.path: digest for digest in file_digests(facts)}
    digests = []
    for file in plans:
        unread = FileDigest(path=file.path, size_bytes=0, digest="", pieces=())
        digests.append(measured.get(file.path, unread))
    return tuple(digests)


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
    problems = [*work.problems, *dict.fromkeys(piece.problem for piece in pieces if piece.problem)]
    relative = {file.path: name for name, file in work.files.items()}
    digests = [replace(file, path=relative[file.path]) for file in file_digests(whole)]
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
