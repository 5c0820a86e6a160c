"""What stands behind a session, as one contract that production and a replay both fulfil.

This module states what a session and its feed may ask of each other; it does nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from spiketriage.train.adapters.source import Micro
from spiketriage.train.adapters.state import Parts
from spiketriage.train.generations.rank_state import RankState
from spiketriage.train.guarding.guard import Guard, Policy
from spiketriage.train.harness import Loaded
from spiketriage.train.recording.recorder import Recorder
from spiketriage.train.recording.step_recorder import StepRecorder


class SessionView(Protocol):
    """What a feed may know of the session that it serves.

    The cursor is the next micro-batch: its epoch and its place (`at`) there. `is_save_due` says
    that the framework asked for a generation.
    """

    parts: Parts
    last_step: int
    epoch_number: int
    at: int
    is_save_due: bool

    def state(self) -> RankState:
        """Everything that this rank needs to go on, as it stands in memory."""
        ...


class Feed(Protocol):
    """Where steps come from and where records go: production, or a replay.

    `generation` is what to begin from and `loader` how; `acts` says whether the guard's stop and
    rollback are carried out, `left_out` which micro-batches rollbacks took out of the data
    (`<epoch>:<place>`).
    """

    recorder: Recorder
    generation: Path | None
    loader: str
    acts: bool
    left_out: frozenset[str]
    probe: StepRecorder | None

    def opened(self, session: SessionView) -> None:
        """The parts are there; nothing is restored yet."""
        ...

    def guard(self, policy: Policy, saved: Mapping[str, Any]) -> Guard:
        """The guard, with what a generation saved of it, if any; it outlives a rollback."""
        ...

    def read(self, generation: Path, parts: Parts) -> RankState:
        """This rank's state of a generation, through the feed's loader."""
        ...

    def loaded(self, loaded: Loaded) -> None:
        """What was held at the last moment before the first step."""
        ...

    def between(self, session: SessionView) -> None:
        """No step is under way; returns when the next one is to be run."""
        ...

    def finish(self, session: SessionView) -> None:
        """No further step will come."""
        ...

    def micros(self, session: SessionView) -> Iterator[Micro]:
        """The micro-batches of the epoch, from the session's cursor on."""
        ...

    def step(self, session: SessionView) -> AbstractContextManager[StepRecorder]:
        """Opens the record of the next step."""
        ...
