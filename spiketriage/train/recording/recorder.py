"""The recorder: one rank's step chain, appended every step, so that a crash loses one step at most.

It never raises into the training loop because of the disk and never waits for it longer than its
patience: a record that cannot be written is dropped and counted, and the count is in the file.

The training thread gathers; a writing thread encodes and appends; a third flushes. When a step
ends, the training thread waits for its frame, at most `patience_s` and only while the writer is not
behind. Numbers that are still on an accelerator arrive later, and their frame with them: there, a
crash may cost the steps that were still queued.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from spiketriage.digests import raw_of_bytes
from spiketriage.nouns.telemetry import Identity, Link
from spiketriage.train.recording import deferred, random_state
from spiketriage.train.recording.background import BackgroundQueue, Job
from spiketriage.train.recording.budget import Budget, Level
from spiketriage.train.recording.digester import Digester
from spiketriage.train.recording.ring import Ring
from spiketriage.train.recording.segment_file import SegmentFile, open_at, open_segment
from spiketriage.train.recording.step_recorder import Sink, StepRecorder
from spiketriage.wire import ring as ring_wire
from spiketriage.wire import telemetry
from spiketriage.wire.chain import position

BUDGET_SHARE = 0.01  # of step time: docs/design-reasons.md#recorder
PATIENCE_S = 0.05
# A step that takes longer is reported once, and again whenever the time has doubled.
STALL_AFTER_S = 60.0
CLOSE_WITHIN_S = 10.0
# What a loss scale may make overflow.
SCALED = ("local_gradient ", "reduced_gradient ", "grad/", "clip/")
MAX_WAITING = 256  # frames in memory while the disk stalls: minutes of training, some MB


class Mirror(Protocol):
    """Somebody else's dashboard: takes a step's metrics, never blocks, counts what it drops."""

    num_dropped: int

    def put(self, step: int, metrics: Mapping[str, float]) -> None:
        """Pass the metrics on, or drop and count them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """The step that is under way: how long it has been, and the last stage that was recorded."""

    step: int
    running_s: float
    last_stage: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Nonfinite:
    """A step with a NaN or an infinity, and the links and metrics that hold one, in chain order."""

    step: int
    names: tuple[str, ...]


class Recorder:
    """One rank's segment, written step by step: `with recorder.step(1) as step: …`.

    `budget_share` is the part of step time that recording may take before it thins (a notice
    says so), None for no limit, as in a replay. From the start, `digest_period` digests each tensor
    every so many steps only, and `sample_stride` measures 1 in so many elements of large tensors
    for update norm and RMS_t. The last `ring_slots` (micro)batches handed to `StepRecorder.tokens`
    are kept beside the segment.
    """

    def __init__(
        self,
        folder: Path,
        *,
        rank: int,
        identity: Identity,
        path: Path | None = None,
        attempt: int | None = None,
        budget_share: float | None = BUDGET_SHARE,
        digest_period: int = 1,
        sample_stride: int = 1,
        ring_slots: int = 16,
        mirror: Mirror | None = None,
        patience_s: float = PATIENCE_S,
        stall_after_s: float = STALL_AFTER_S,
    ) -> None:
        self.rank = rank
        self.budget = Budget(budget_share)
        self._least = Level(digest_period=digest_period, sample_stride=sample_stride)
        self.patience_s, self.stall_after_s = patience_s, stall_after_s
        self.current: StepRecorder | None = None
        # The newest that neither a guard nor a loss scaler answers for.
        self.newest_nonfinite: Nonfinite | None = None
        self._mirror = mirror
        if path is None:
            self.path, self.attempt, descriptor = open_segment(folder, rank, attempt)
            ring_name = ring_wire.ring_name(rank, self.attempt)
        else:
            self.path, self.attempt, descriptor = path, attempt or 0, open_at(path)
            ring_name = path.name + ring_wire.SUFFIX
        self._file = SegmentFile(descriptor)
        self._ring = Ring(self.path.with_name(ring_name), ring_slots)
        self._digester = Digester()
        self._layouts: dict[tuple[Link, ...], int] = {}
        self._prefix = self._header(identity)
        self._last_spent_s = self._started_s = 0.0
        self._gave_up = self._is_closed = False
        self._loaded_step: int | None = None
        self._said: set[tuple[str, str]] = set()
        self._next_stall_s = stall_after_s
        self._queue = BackgroundQueue(
            "recorder", max_jobs=MAX_WAITING, tick=self._tell_stall, interval_s=1.0
        )
        self._put(lambda: self._append(b""))

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def num_dropped(self) -> int:
        """Records and batches lost so far: the disk refused them, or the queue was full."""
        return self._queue.num_lost

    @property
    def is_behind(self) -> bool:
        """Whether the writer was waited for in vain and has not caught up: the disk is too slow."""
        return self._gave_up and self._queue.num_waiting > 1

    def in_flight(self) -> Flight | None:
        """The step under way, for a watchdog in another thread."""
        current, started_s = self.current, self._started_s
        if current is None:
            return None
        running_s = time.monotonic() - started_s
        return Flight(step=current.step, running_s=running_s, last_stage=current.last_stage)

    def close(self, timeout_s: float = CLOSE_WITHIN_S) -> None:
        """Write what waits, flush and close, once; a hanging disk is left after `timeout_s`."""
        if self._is_closed:
            return
        self._is_closed = True
        deadline_s = time.monotonic() + timeout_s
        self._queue.wait(self._queue.num_put, timeout_s)
        self._queue.put(self._tell_dropped)
        if self._queue.close(max(0.0, deadline_s - time.monotonic())):
            self._ring.close()
            self._file.close(max(0.0, deadline_s - time.monotonic()))

    def loaded(
        self,
        *,
        step: int,
        generation: str,
        fields: Mapping[str, str],
        tensors: Mapping[str, Mapping[str, str]],
    ) -> None:
        """Hex digests of what this rank holds after a load: by field, and by tensor of a group."""
        self._loaded_step = step
        record = {
            "step": step,
            "generation": generation,
            "fields": fields,
            "tensors": tensors,
            "wall_time_s": time.time(),
        }
        frame = telemetry.encode_frame(telemetry.LOAD, telemetry.encode_json(record))
        self._put(lambda: self._append(frame))

    def notice(
        self,
        kind: str,
        text: str,
        *,
        step: int | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """A word about the recording itself: what was left out is said here, never silently."""
        frame = _notice(kind, text, step, data or {})
        self._put(lambda: self._append(frame))

    def notice_once(self, kind: str, text: str) -> None:
        """`notice`, unless this recorder has said the same before."""
        if (kind, text) not in self._said:
            self._said.add((kind, text))
            step = None
            if self.current is not None:
                step = self.current.step
            self.notice(kind, text, step=step)

    @contextmanager
    def step(self, number: int) -> Iterator[StepRecorder]:
        """Record one step; a step that raises leaves no record, which is itself evidence."""
        record = StepRecorder(
            number,
            level=self.budget.level.at_least(self._least),
            digester=self._digester,
            keep_batch=self._keep_batch,
            notify=self.notice_once,
        )
        started_s = time.perf_counter()
        self._started_s, self._next_stall_s = time.monotonic(), self.stall_after_s
        self.current = record
        try:
            yield record
        finally:
            self.current = None
        self._finish(record, started_s)

    def _finish(self, record: StepRecorder, started_s: float) -> None:
        ended_s = time.perf_counter()
        metrics = record.metrics
        metrics["time/step_s"] = ended_s - started_s
        metrics["time/recorder_s"] = self._last_spent_s
        metrics["recorder/thinning"] = self.budget.number
        metrics["recorder/sample_stride"] = record.level.sample_stride
        if self._mirror is not None:
            metrics["recorder/num_mirror_dropped"] = self._mirror.num_dropped
        if self._loaded_step is not None:
            metrics.setdefault("steps_since_load", record.step - self._loaded_step)
        copy, sinks = record.start_copy()
        written_at = time.time()
        number = self._put(lambda: self._write(record, copy, sinks, written_at))
        # A writer that was too slow once is not waited for again before it has caught up.
        if number is not None and copy.is_here and not self.is_behind:
            self._gave_up = not self._queue.wait(number, self.patience_s)
        self._last_spent_s = record.clock.spent_s + time.perf_counter() - ended_s
        said = self.budget.add(self._last_spent_s, time.perf_counter() - started_s)
        if said:
            self.notice("thinning", said, step=record.step, data={"level": self.budget.number})

    def _put(self, job: Job) -> int | None:
        return self._queue.put(job)

    def _write(
        self, record: StepRecorder, copy: deferred.Copy, sinks: list[Sink], wall_time_s: float
    ) -> bool:
        """Make and append the frame of a step; runs in the writing thread."""
        pause_s = 0.0005
        while not copy.has_arrived:
            # Not a blocking wait: a device that hangs must not silence this thread.
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.05)
            self._tell_stall()
        for sink, numbers in zip(sinks, copy.read(), strict=True):
            sink(numbers)
        if self._mirror is not None:
            self._mirror.put(record.step, dict(record.metrics))
        links = tuple(record.links)
        is_known = links in self._layouts
        number = self._layouts.get(links, len(self._layouts))
        payload = telemetry.encode_step(
            self._fields(record, wall_time_s), number, b"".join(record.links.values())
        )
        frames = telemetry.encode_frame(telemetry.STEP, payload)
        for text in record.anomalies:
            frames += _notice("anomaly", text, record.step, {})
        if not is_known:
            layout = telemetry.encode_json({"id": number, "links": [list(link) for link in links]})
            frames = telemetry.encode_frame(telemetry.LAYOUT, layout) + frames
        written = self._append(frames)
        if written:
            # Only now: a layout that was lost with its step is written again with the next one.
            self._layouts[links] = number
        names = _nonfinite_names(record)
        unjudged = _unjudged(record, names)
        if unjudged:
            self.newest_nonfinite = Nonfinite(step=record.step, names=unjudged)
        if names or record.anomalies:
            self._file.sync_soon()
        return written

    def _fields(self, record: StepRecorder, wall_time_s: float) -> dict[str, Any]:
        return {
            "step": record.step,
            "metrics": record.metrics,
            "nonfinite": [list(link) for link in _nonfinite_links(record)],
            "ids": record.batch_ids,
            "content": record.document_digests,
            "series": {
                name: list(itertools.chain.from_iterable(parts))
                for name, parts in record.vectors.items()
            },
            "wall_time_s": wall_time_s,
            "num_dropped": self.num_dropped,
            "rng": raw_of_bytes(b"".join(random_state.pack(record.rng).values())).hex()
            if record.rng
            else "",
            "cursor": record.cursor,
        }

    def _keep_batch(self, record: StepRecorder, tokens_BT: Tensor, documents: Any) -> None:
        if not self._ring.num_slots:
            return
        copy = deferred.start_tokens(tokens_BT)
        about = {
            "step": record.step,
            "documents": documents,
            "rng": record.rng,
            "cursor": record.cursor,
        }
        self._put(lambda: self._write_batch(about, copy))

    def _write_batch(self, about: dict[str, Any], copy: deferred.Copy) -> bool:
        tokens: np.ndarray[Any, Any] = copy.read_array()
        rng = {name: state.hex() for name, state in random_state.pack(about["rng"]).items()}
        return self._ring.write({**about, "rng": rng}, tokens)

    def _append(self, frames: bytes) -> bool:
        """Append, with the header in front as long as no write has succeeded."""
        if not self._file.append(self._prefix + frames):
            return False
        self._prefix = b""
        return True

    def _header(self, identity: Identity) -> bytes:
        header = {
            "schema": telemetry.SCHEMA,
            "rank": self.rank,
            "attempt": self.attempt,
            "started_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "identity": asdict(identity),
        }
        return telemetry.MAGIC + telemetry.encode_frame(
            telemetry.HEADER, telemetry.encode_json(header)
        )

    def _tell_dropped(self) -> bool:
        if not self.num_dropped:
            return True
        text = f"{self.num_dropped} records or batches were dropped"
        return self._append(_notice("dropped", text, None, {"num_dropped": self.num_dropped}))

    def _tell_stall(self) -> None:
        flight = self.in_flight()
        if flight is not None and flight.running_s > self._next_stall_s:
            self._next_stall_s = 2 * flight.running_s
            stage = "nothing recorded yet"
            if flight.last_stage:
                stage = f"the last stage recorded is {flight.last_stage}"
            text = f"step {flight.step} has taken {flight.running_s:.0f} s and goes on; {stage}"
            data = {"running_s": flight.running_s, "last_stage": flight.last_stage}
            self._append(_notice("in-flight", text, flight.step, data))
            self._file.sync_soon()


def _nonfinite_links(record: StepRecorder) -> list[Link]:
    return sorted(dict.fromkeys(record.nonfinite), key=lambda link: position(link.stage))


def _nonfinite_names(record: StepRecorder) -> tuple[str, ...]:
    metrics = (name for name, value in record.metrics.items() if value - value != 0.0)
    return (*(f"{link.stage} {link.key}" for link in _nonfinite_links(record)), *metrics)


def _unjudged(record: StepRecorder, names: tuple[str, ...]) -> tuple[str, ...]:
    """Names that nobody else answers for: a guard does, and a loss scaler for its overflows."""
    if "guard/action" in record.metrics:
        return ()
    if record.metrics.get("loss_scale", 1.0) == 1.0:
        return names
    return tuple(name for name in names if not name.startswith(SCALED))


def _notice(kind: str, text: str, step: int | None, data: Mapping[str, Any]) -> bytes:
    record = {"kind": kind, "step": step, "text": text, "data": data, "wall_time_s": time.time()}
    return telemetry.encode_frame(telemetry.NOTICE, telemetry.encode_json(record))
