"""The two sides that a session can stand on, as one contract: production, and a replay.

This module states the contract; `production` and `replay` fulfil it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from spiketriage.train.adapters.source import Micro
from spiketriage.train.adapters.state import Parts
from spiketriage.train.generations.rank_state import RankState
from spiketriage.train.guarding.guard import Guard, Policy
from spiketriage.train.harness import Loaded
from spiketriage.train.recording.recorder import Recorder
from spiketriage.train.recording.step_recorder import StepRecorder

if TYPE_CHECKING:
    from spiketriage.train.adapters.session import Session


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

    def opened(self, session: Session) -> None:
        """The parts are there; nothing is restored yet."""
        ...

    def guard(self, policy: Policy, saved: Mapping[str, Any]) -> Guard:
        """The guard, with what a generation saved of it (empty: nothing).

        It outlives a rollback.
        """
        ...

    def read(self, generation: Path, parts: Parts) -> RankState:
        """This rank's state of a generation, through the feed's loader."""
        ...

    def loaded(self, loaded: Loaded) -> None:
        """What was held at the last moment before the first step."""
        ...

    def between(self, session: Session) -> None:
        """No step is under way; returns when the next one is to be run."""
        ...

    def finish(self, session: Session) -> None:
        """No further step will come."""
        ...

    def micros(self, session: Session) -> Iterator[Micro]:
        """The micro-batches of the epoch, from the session's cursor on."""
        ...

    def step(self, session: Session) -> AbstractContextManager[StepRecorder]:
        """Opens the record of the next step."""
        ...
