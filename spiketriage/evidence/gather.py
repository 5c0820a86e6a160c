"""Runs the collectors in a child process, and goes on without the one that hangs or dies.

This module never copies a byte itself and never waits for a silent child beyond its collector's
patience.
"""

from __future__ import annotations

import json
import queue
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from spiketriage import children
from spiketriage.durable import disk_full
from spiketriage.evidence import layout
from spiketriage.evidence.collect import GENERATIONS, missing
from spiketriage.evidence.collectors import COLLECTORS
from spiketriage.evidence.measured import from_json
from spiketriage.nouns.checkpoint import MeasuredGeneration
from spiketriage.nouns.incident import Artifact

COPIERS = tuple(collector.name for collector in COLLECTORS)
GENERATIONS_TIMEOUT_S = 1800.0  # a generation is told when all of its files have been read
_TIMEOUTS_S = {collector.name: collector.timeout_s for collector in COLLECTORS} | {
    GENERATIONS: GENERATIONS_TIMEOUT_S
}


@dataclass(slots=True, kw_only=True)
class Gathered:
    """Everything the children told; `sha256` is by name under `evidence/data/`."""

    artifacts: list[Artifact] = field(default_factory=list)
    sha256: dict[str, str] = field(default_factory=dict)
    generations: list[MeasuredGeneration] = field(default_factory=list)
    done: list[str] = field(default_factory=list)


def gather(
    run: Path,
    payload: Path,
    collectors: Sequence[str],
    *,
    onset: int | None = None,
    timeout_s: float | None = None,
    at_begin: Callable[[str, Gathered], None] = lambda _name, _gathered: None,
) -> Gathered:
    """Run `collectors` in order; one that hangs or dies becomes a missing artifact of its own name.

    `at_begin` is told each collector's name when it begins, with what was gathered before.

    Raises:
        DiskFullError: what was copied before stands.
    """
    gathered = Gathered()
    pending = list(collectors)
    while pending:
        job = {
            "run": str(run),
            "payload": str(payload),
            "collectors": pending,
            "onset": onset,
            "kept": _kept(gathered),
        }
        why = _one_child(job, gathered, timeout_s, at_begin)
        pending = [name for name in pending if name not in gathered.done]
        if pending and why:
            lost = pending.pop(0)
            gathered.artifacts.append(missing(lost, "collector", why))
    return gathered


def _kept(gathered: Gathered) -> dict[str, int]:
    """What earlier children took of the budget."""
    copied = [artifact for artifact in gathered.artifacts if artifact.kept == "copied"]
    return {
        "num_files": len(copied),
        "num_bytes": sum(artifact.size_bytes for artifact in copied),
    }


def _one_child(
    job: Mapping[str, Any],
    gathered: Gathered,
    timeout_s: float | None,
    at_begin: Callable[[str, Gathered], None],
) -> str:
    """Feed one child's lines into `gathered`; returns why it ended early, or nothing."""
    child = subprocess.Popen(
        children.python("-m", "spiketriage.evidence.collect"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=children.environment(),
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    lines: queue.Queue[bytes] = queue.Queue()
    talk: list[bytes] = []
    readers = (
        threading.Thread(target=_read, args=(child.stdout, lines.put), daemon=True),
        threading.Thread(target=_read, args=(child.stderr, talk.append), daemon=True),
    )
    try:
        for reader in readers:
            reader.start()
        _send(child.stdin, job)
        current = str(job["collectors"][0])
        while True:
            if timeout_s is None:
                patience_s = _TIMEOUTS_S[current]
            else:
                patience_s = timeout_s
            try:
                line = lines.get(timeout=patience_s)
            except queue.Empty:
                return f"gave no sign of life for {patience_s:g} s and was stopped"
            if not line:
                break
            message = json.loads(line)
            current = _take(message, gathered, current)
            if "begin" in message:
                at_begin(current, gathered)
        code = child.wait()
        readers[1].join(timeout=1)
        last = b"".join(talk).decode(errors="replace").strip().rpartition("\n")[2]
        if code:
            return f"its process ended with {code}: {last}"
        return ""
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
        child.stderr.close()
        drafts = Path(job["payload"]).with_name(layout.DRAFTS)
        shutil.rmtree(drafts, ignore_errors=True)  # a child that died may have left one


def _send(stream: IO[bytes], job: Mapping[str, Any]) -> None:
    try:
        stream.write(json.dumps(job).encode())
        stream.close()
    except BrokenPipeError:
        pass  # the child died first; its exit code says so


def _read(stream: IO[bytes], take: Callable[[bytes], object]) -> None:
    try:
        for line in stream:
            take(line)
    except ValueError:
        pass  # closed by the parent, which has given this child up
    take(b"")


def _take(line: Mapping[str, Any], gathered: Gathered, current: str) -> str:
    if "artifact" in line:
        artifact = Artifact(**line["artifact"])
        gathered.artifacts.append(artifact)
        if "copy" in line:
            gathered.sha256[line["copy"]] = line["sha256"]
    elif "generation" in line:
        gathered.generations.append(from_json(line["generation"]))
    elif "gap" in line:
        gathered.artifacts.append(missing(line["gap"], "collector", line["note"]))
    elif "full" in line:
        raise disk_full(line["full"], line["size_bytes"])
    elif "end" in line:
        gathered.done.append(line["end"])
    return str(line.get("begin", current))
