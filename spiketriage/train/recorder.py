"""The recorder: one rank's step chain, one framed append a step, so that a crash loses at most the step in flight.

It never raises into the training loop because of the disk: a record that cannot be written is dropped and counted.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor

from spiketriage.digests import of_mapping, raw_of_bytes
from spiketriage.records import Identity, Link
from spiketriage.train.tensors import digest
from spiketriage.wire import telemetry


class StepRecorder:
    """Collects the links and metrics of one step; the frame is written when the step ends."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.metrics: dict[str, float] = {}
        self.links: dict[Link, bytes] = {}
        self.nonfinite: list[Link] = []
        self.batch_ids: Any = None
        self.document_digests: dict[str, str] = {}
        self.vectors: dict[str, list[float]] = {}

    def ids(self, value: Any) -> None:
        """The batch's name as the harness gives it: any JSON value."""
        self.batch_ids = value
        self.links[Link("ids", "all")] = raw_of_bytes(json.dumps(value, sort_keys=True).encode())

    def content(self, digests: Mapping[str, str]) -> None:
        """Hex digest of every document's bytes as they were consumed."""
        self.document_digests.update(digests)
        self.links[Link("content", "all")] = bytes.fromhex(of_mapping(self.document_digests))

    def tensor(self, stage: str, key: str, value: Tensor) -> None:
        """Digest and finiteness of one tensor of `stage`."""
        link = Link(stage, key)
        taken = digest(value)
        self.links[link] = taken.digest
        if not taken.finite:
            self.nonfinite.append(link)

    def tensors(self, stage: str, values: Mapping[str, Tensor]) -> None:
        """Digest and finiteness of every named tensor of `stage`."""
        for key, value in values.items():
            self.tensor(stage, key, value)

    def log(self, values: Mapping[str, float]) -> None:
        """Metrics by their registered names (`wire.chain.METRICS`)."""
        self.metrics.update(values)

    def series(self, name: str, values: Sequence[float]) -> None:
        """A vector metric (`wire.chain.SERIES`); repeated calls append."""
        self.vectors.setdefault(name, []).extend(values)


class Recorder:
    """One rank's segment: `with Recorder(folder, rank=0, identity=…) as rec: with rec.step(1) as s: …`."""

    def __init__(
        self,
        folder: Path,
        *,
        rank: int,
        identity: Identity,
        path: Path | None = None,
        attempt: int | None = None,
    ) -> None:
        self.rank = rank
        self.num_dropped = 0
        self._size_bytes = 0
        self._layouts: dict[tuple[Link, ...], int] = {}
        self.path, self.attempt, self._descriptor = _create(folder, rank, path, attempt)
        header = {
            "schema": telemetry.SCHEMA,
            "rank": rank,
            "attempt": self.attempt,
            "started_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "identity": asdict(identity),
        }
        self._append(telemetry.MAGIC + telemetry.encode_frame(telemetry.HEADER, telemetry.encode_json(header)))

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Flush to disk and close the segment."""
        if self._descriptor >= 0:
            os.fdatasync(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def loaded(
        self,
        *,
        step: int,
        generation: str,
        fields: Mapping[str, str],
        tensors: Mapping[str, Mapping[str, str]],
    ) -> None:
        """What this rank holds right after a load: hex digests by field, and by tensor for params and optimizer."""
        record = {
            "step": step,
            "generation": generation,
            "fields": fields,
            "tensors": tensors,
            "wall_time_s": time.time(),
        }
        self._append(telemetry.encode_frame(telemetry.LOAD, telemetry.encode_json(record)))

    @contextmanager
    def step(self, number: int) -> Iterator[StepRecorder]:
        """Record one step; a step that raises leaves no record, which is itself evidence."""
        started_s = time.perf_counter()
        recorder = StepRecorder(number)
        yield recorder
        recorder.metrics["time/step_s"] = time.perf_counter() - started_s
        self._write(recorder)

    def _write(self, step: StepRecorder) -> None:
        links = tuple(step.links)
        known = links in self._layouts
        number = self._layouts[links] if known else len(self._layouts)
        frames = self._record(step, number)
        if not known:
            layout = {"id": number, "links": [list(link) for link in links]}
            frames = telemetry.encode_frame(telemetry.LAYOUT, telemetry.encode_json(layout)) + frames
        if self._append(frames):
            # Only now: a layout that was lost with its step must be written again with the next one.
            self._layouts[links] = number

    def _record(self, step: StepRecorder, layout: int) -> bytes:
        record = {
            "step": step.step,
            "metrics": step.metrics,
            "nonfinite": [list(link) for link in step.nonfinite],
            "ids": step.batch_ids,
            "content": step.document_digests,
            "series": step.vectors,
            "wall_time_s": time.time(),
            "num_dropped": self.num_dropped,
        }
        payload = telemetry.encode_step(record, layout, b"".join(step.links.values()))
        return telemetry.encode_frame(telemetry.STEP, payload)

    def _append(self, data: bytes) -> bool:
        """Append whole or not at all; telemetry must never stop training, so a lost record is counted, not raised."""
        try:
            if os.write(self._descriptor, data) == len(data):
                self._size_bytes += len(data)
                return True
            # A disk that fills up takes a part: what follows a torn frame could never be read again.
            os.ftruncate(self._descriptor, self._size_bytes)
        except OSError:
            pass
        self.num_dropped += 1
        return False


def _create(folder: Path, rank: int, path: Path | None, attempt: int | None) -> tuple[Path, int, int]:
    """Open a new segment; production takes the first free attempt number, a trial names its path."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path, attempt or 0, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    folder.mkdir(parents=True, exist_ok=True)
    number = attempt or 0
    while True:
        candidate = folder / telemetry.segment_name(rank, number)
        try:
            return (
                candidate,
                number,
                os.open(candidate, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644),
            )
        except FileExistsError:
            number += 1
