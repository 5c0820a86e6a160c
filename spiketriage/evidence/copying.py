"""Makes an artifact of one item of evidence: its copy, or why there is none.

This module never copies what the budget does not allow, and never copies a file twice.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from spiketriage.digests import open_regular
from spiketriage.durable import write
from spiketriage.errors import EvidenceError
from spiketriage.evidence.budget import Budget
from spiketriage.evidence.collectors import Item
from spiketriage.evidence.redacting import rule_of
from spiketriage.evidence.stream_copy import Alive, digested, stream_copy
from spiketriage.nouns.incident import Artifact
from spiketriage.nouns.listing import counted
from spiketriage.readers.look import HEAD_BYTES
from spiketriage.redaction import Patterns


def copy(
    item: Item,
    target: Path,
    path: str,
    *,
    patterns: Patterns,
    drafts: Path,
    budget: Budget,
    alive: Alive,
) -> tuple[Artifact, str]:
    """Copy and digest in one read pass; a copy of the same size and time is digested where it is.

    Raises:
        NoRoomError: the budget does not allow it.
        EvidenceError: the source cannot be read or is not a regular file.
        OSError, PartialError: the copy cannot be written; the cause of the latter is an OSError.
    """
    notes = []
    if item.content is not None:
        size_bytes, mtime_ns = len(item.content), 0
        budget.require_room(size_bytes)
        write(target, item.content)
        copied = digested(target)
    else:
        status = regular(item.source)
        size_bytes, mtime_ns = status.st_size, status.st_mtime_ns
        budget.require(status)
        if _is_copy(target, status):
            copied = digested(target)
        else:
            rule = rule_of(item.kind, item.source, _head(item.source), patterns)
            copied = stream_copy(
                item.source, target, rule=rule, drafts=drafts, budget=budget, alive=alive
            )
        if copied.num_read != size_bytes:
            notes.append("grew or shrank while it was copied")
    if copied.num_redacted:
        notes.append(f"{counted(copied.num_redacted, 'credential')} redacted")
    budget.take(copied.size_bytes)
    artifact = Artifact(
        path=path,
        kind=item.kind,
        size_bytes=copied.size_bytes,
        mtime_ns=mtime_ns,
        digest=copied.digest,
        expected="",
        kept="copied",
        note="; ".join(notes),
        source_digest=copied.read_digest if copied.num_redacted else "",
    )
    return artifact, copied.sha256


def regular(source: Path) -> os.stat_result:
    """The status of a regular file; opening a pipe would wait for a writer.

    Raises:
        EvidenceError: it is none, or cannot be looked at.
    """
    try:
        status = source.stat()
    except OSError as error:
        raise EvidenceError(f"cannot be read: {error.strerror or error}") from error
    if not stat.S_ISREG(status.st_mode):
        raise EvidenceError("is not a regular file")
    return status


def _head(source: Path) -> bytes:
    try:
        with open_regular(source) as stream:
            return stream.read(HEAD_BYTES)
    except OSError as error:
        raise EvidenceError(f"cannot be read: {error.strerror or error}") from error


def _is_copy(target: Path, status: os.stat_result) -> bool:
    """Whether an earlier freeze copied it: what was redacted has the time of the copy."""
    try:
        held = target.stat()
    except FileNotFoundError:
        return False
    return (held.st_size, held.st_mtime_ns) == (status.st_size, status.st_mtime_ns)
