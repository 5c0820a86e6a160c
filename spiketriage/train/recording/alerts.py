"""Tells people outside the job.

A webhook or a command, from a thread of its own, while the job hangs if need be.

It never blocks whoever raises an alert, never repeats one within its cool-down, and loses none that
could be spooled.

Delivery comes first and the spool second, so that a stalled disk delays nothing; keep the spool on
a local disk all the same, since the thread that writes it cannot deliver meanwhile. Spooled alerts
are tried again, by the next process too.
"""

from __future__ import annotations

import atexit
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from spiketriage import durable
from spiketriage.digests import of_bytes
from spiketriage.train.recording.background import BackgroundQueue
from spiketriage.train.recording.channels import DELIVER_WITHIN_S, GRACE_S, Channel, Line
from spiketriage.train.recording.recorder import Nonfinite, Recorder
from spiketriage.wire.telemetry import encode_json

Severity = Literal["info", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "error")
RETRY_EVERY_S = 30.0
MAX_SPOOLED = 1000
MAX_NAMES = 3
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One message. `key` is what cool-down and deduplication go by.

    `next_command` can be pasted.
    """

    severity: Severity
    key: str
    summary: str
    run: str = ""
    rank: int | None = None
    step: int | None = None
    metric: str = ""
    value: float | None = None
    threshold: float | None = None
    next_command: str = ""
    raised_at: float = field(default_factory=time.time)
    num_suppressed: int = 0


class Alerts:
    """Raises alerts through every channel; what no channel took is spooled and tried again.

    With `watch`, the alerting thread itself looks at a recorder: a step that takes longer than
    `stall_after_s`, a telemetry disk that does not keep up, and a recorded NaN or infinity are told
    without anybody's help. Of nonfinite steps those are told that no guard judged
    (`Decision.metrics` is not in the record), the newest at each look; with a loss scale, gradients
    that overflow are not.
    """

    def __init__(
        self,
        channels: Sequence[Channel],
        *,
        spool: Path | None = None,
        at_least: Severity = "warning",
        cooldown_s: float = 600.0,
        retry_every_s: float = RETRY_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
        look_every_s: float = 1.0,
    ) -> None:
        self.spool = spool
        self._lines = tuple(map(Line, channels))
        self.at_least, self.cooldown_s, self.retry_every_s = at_least, cooldown_s, retry_every_s
        self._clock = clock
        self._last_s: dict[str, float] = {}
        self._suppressed: dict[str, int] = {}
        self._lock = threading.Lock()
        self._retry_at_s = 0.0
        self._last_tried = ""  # name of the spooled alert that was tried last
        self._under_way: set[bytes] = set()
        self._watched: Recorder | None = None
        self._alerted_nonfinite: Nonfinite | None = None
        self._stall_after_s, self._about = 0.0, ("", "")
        self._queue = BackgroundQueue(
            "alerts", max_jobs=64, tick=self._look, interval_s=look_every_s
        )
        atexit.register(self.close)  # a job that dies of an exception still sends its last words

    @property
    def num_dropped(self) -> int:
        """Alerts that could neither be delivered nor spooled, or that came too fast to leave."""
        return self._queue.num_lost

    def watch(
        self,
        recorder: Recorder,
        *,
        stall_after_s: float = 300.0,
        run: str = "",
        next_command: str = "",
    ) -> None:
        """Look at `recorder` from the alerting thread, about once a second."""
        self._stall_after_s, self._about = stall_after_s, (run, next_command)
        self._watched = recorder

    def alert(self, alert: Alert) -> None:
        """Send `alert` unless it is too mild or its key is cooling down; returns at once."""
        if SEVERITIES.index(alert.severity) < SEVERITIES.index(self.at_least):
            return
        now_s = self._clock()
        with self._lock:  # the training thread and the watching one may have the same thing to say
            last_s = self._last_s.get(alert.key)
            if last_s is not None and now_s - last_s < self.cooldown_s:
                self._suppressed[alert.key] = self._suppressed.get(alert.key, 0) + 1
                return
            self._last_s[alert.key] = now_s
            num_suppressed = self._suppressed.pop(alert.key, 0)
        message = encode_json({**asdict(alert), "num_suppressed": num_suppressed})
        with self._lock:
            self._under_way.add(message)
        if self._queue.put(lambda: self._send(message)) is None:
            self._forget(message)

    def close(self, timeout_s: float = DELIVER_WITHIN_S) -> None:
        """Wait at most `timeout_s` for what is on its way; what has not arrived is spooled then."""
        atexit.unregister(self.close)
        if not self._queue.close(timeout_s):
            rescue = threading.Thread(target=self._spool_the_rest, daemon=True)
            rescue.start()
            rescue.join(GRACE_S)  # no longer: the disk of the spool may be what hangs

    def _send(self, message: bytes) -> bool:
        """Whether the message was delivered, or spooled and said so."""
        is_kept = self._deliver(message) or self._spool(message)
        self._forget(message)
        return is_kept

    def _forget(self, message: bytes) -> None:
        with self._lock:
            self._under_way.discard(message)

    def _spool_the_rest(self) -> None:
        with self._lock:
            rest = list(self._under_way)
        for message in rest:
            self._spool(message)

    def _deliver(self, message: bytes) -> bool:
        """Whether at least one channel took the message; every one is tried, all at once."""
        for line in self._lines:
            line.begin(message)
        end_s = time.monotonic() + DELIVER_WITHIN_S + GRACE_S
        arrived = [line.arrived(end_s - time.monotonic()) for line in self._lines]
        return any(arrived)

    def _spool(self, message: bytes) -> bool:
        if self.spool is None or (
            self.spool.is_dir() and len(list(self.spool.glob("*.json"))) >= MAX_SPOOLED
        ):
            return False
        path = self.spool / f"{time.time_ns():020d}-{of_bytes(message)[:8]}.json"
        durable.write(path, message)
        _LOG.warning("alert spooled, and tried again every %g s: %s", self.retry_every_s, path)
        self._retry_at_s = self._clock() + self.retry_every_s
        return True

    def _look(self) -> None:
        """One round of the alerting thread: the recorder under watch, then what is spooled."""
        if self._watched is not None:
            self._look_at(self._watched)
        if self.spool is not None and self._clock() >= self._retry_at_s:
            self._retry_at_s = self._clock() + self.retry_every_s
            self._try_spooled(self.spool)

    def _try_spooled(self, spool: Path) -> None:
        """Deliver what is spooled, until one is refused; the next round begins behind that one.

        One that nobody will ever take holds up no other.
        """
        paths = sorted(spool.glob("*.json"))
        later = [path for path in paths if path.name > self._last_tried]
        for path in later + paths[: len(paths) - len(later)]:
            self._last_tried = path.name
            with suppress(FileNotFoundError):  # another process of this job was faster
                if not self._deliver(path.read_bytes()):
                    break
                path.unlink()

    def _look_at(self, recorder: Recorder) -> None:
        flight = recorder.in_flight()
        if flight is not None and flight.running_s > self._stall_after_s:
            stage = "nothing recorded yet"
            if flight.last_stage:
                stage = f"last stage {flight.last_stage}"
            self._raise(
                recorder,
                "error",
                "step-stalled",
                f"step {flight.step} has taken {flight.running_s:.0f} s, {stage}",
                step=flight.step,
                metric="time/step_s",
                value=flight.running_s,
                threshold=self._stall_after_s,
            )
        if recorder.is_behind or recorder.num_dropped:
            num = recorder.num_dropped
            self._raise(
                recorder,
                "warning",
                "telemetry-stalled",
                f"telemetry lags, {num} records dropped",
                value=float(num),
            )
        nonfinite = recorder.newest_nonfinite
        if nonfinite is not None and nonfinite != self._alerted_nonfinite:
            self._alerted_nonfinite = nonfinite
            where = ", ".join(nonfinite.names[:MAX_NAMES])
            if len(nonfinite.names) > MAX_NAMES:
                where += f" and {len(nonfinite.names) - MAX_NAMES} more"
            self._raise(
                recorder,
                "error",
                "nonfinite",
                f"step {nonfinite.step} has a NaN or Inf: {where}",
                step=nonfinite.step,
            )

    def _raise(
        self, recorder: Recorder, severity: Severity, key: str, text: str, **fields: Any
    ) -> None:
        """Alert about a watched rank."""
        run, command = self._about
        rank = recorder.rank
        summary = f"rank {rank}: {text}"
        self.alert(
            Alert(
                severity=severity,
                key=f"{key}/{rank}",
                summary=summary,
                run=run,
                rank=rank,
                next_command=command,
                **fields,
            )
        )


def read_spool(folder: Path) -> list[Mapping[str, object]]:
    """The alerts that wait in a spool, oldest first."""
    return [json.loads(path.read_bytes()) for path in sorted(folder.glob("*.json"))]
