"""Alarms of one anomaly as one episode: a beginning, what else it turned out to be, and an end.

This module judges nothing: it folds the verdicts of a detector, and never drops the first alarm of
a kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spiketriage.detect.alarms import Alarm, alarm
from spiketriage.detect.detector import Verdict

# Rows without an alarm after which an episode is over. A plateau raises one every few rows, since
# its values are learned no faster than the lasting-shift rule looks back.
QUIET_ROWS = 10


@dataclass(slots=True)
class _Open:
    """An episode that goes on."""

    worst: Alarm
    last_step: int
    num_rows: int
    num_quiet: int
    kinds: set[tuple[str, str]]


class Episodes:
    """Says the first alarm of each kind of an episode, and at its end how long and bad it was."""

    def __init__(self) -> None:
        self._open: _Open | None = None
        self._first_step = 0

    def feed(self, verdict: Verdict) -> Iterator[Alarm]:
        """What is to be said after one more row."""
        if verdict.alarms:
            yield from self._out(verdict)
        elif self._open is not None:
            self._open.num_quiet += 1
            if self._open.num_quiet >= QUIET_ROWS:
                yield from self.end()

    def end(self) -> Iterator[Alarm]:
        """Close the episode; one of a single row has been said already."""
        episode, self._open = self._open, None
        if episode is None or episode.num_rows == 1:
            return
        worst = episode.worst
        sentence = (
            f"step {episode.last_step}: the last of {episode.num_rows} rows that were out since "
            f"step {self._first_step}; the worst, {worst.sentence}"
        )
        yield alarm(
            worst.signal,
            "over",
            episode.last_step,
            sentence,
            value=worst.value,
            expected=worst.expected,
            score=worst.score,
            began=self._first_step,
        )

    def _out(self, verdict: Verdict) -> Iterator[Alarm]:
        worst = verdict.alarms[0]  # they come gravest first
        if self._open is None:
            self._open = _Open(
                worst=worst, last_step=verdict.step, num_rows=0, num_quiet=0, kinds=set()
            )
            self._first_step = min(raised.step for raised in verdict.alarms)
        episode = self._open
        if worst.score > episode.worst.score:
            episode.worst = worst
        episode.last_step, episode.num_quiet = verdict.step, 0
        episode.num_rows += 1
        for raised in verdict.alarms:
            kind = (raised.signal, raised.trigger)
            if kind not in episode.kinds:
                episode.kinds.add(kind)
                yield raised
