"""The replay side of a session, and the harness that the desk drives: the job's own loop, paused.

It never writes into the run and never runs a loop of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, cast

from spiketriage.errors import StepNotTakenError, UsageError
from spiketriage.nouns.telemetry import Identity
from spiketriage.train.adapters.clip_link import learning_rate
from spiketriage.train.adapters.feed import SessionView
from spiketriage.train.adapters.pausable import PausableLoop
from spiketriage.train.adapters.production import identity_of, read_left_out
from spiketriage.train.adapters.session import Session
from spiketriage.train.adapters.source import Micro, MicroName, Raw, ids_of
from spiketriage.train.adapters.state import Parts
from spiketriage.train.adapters.untouched import untouched
from spiketriage.train.generations.generation import load_verified
from spiketriage.train.generations.rank_state import RankState
from spiketriage.train.guarding.guard import Guard, Policy
from spiketriage.train.harness import Context, Loaded, Overrides
from spiketriage.train.recording.recorder import Recorder
from spiketriage.train.recording.step_recorder import StepRecorder


class _NoRecorder:
    """Takes what is said before the first step of a replay, when no chain is open yet."""

    current = None

    def notice(
        self,
        kind: str,
        text: str,
        *,
        step: int | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Nothing."""

    def notice_once(self, kind: str, text: str) -> None:
        """Nothing."""


class ReplayFeed:
    """A session's feed whose steps are handed over one by one; between them the loop is paused."""

    acts = False

    def __init__(self, run: Path, *, generation: Path | None, loader: str) -> None:
        self.generation, self.loader = generation, loader
        self.left_out = read_left_out(run)
        self.recorder = cast(Recorder, _NoRecorder())
        self.probe: StepRecorder | None = None
        self.number = 0
        self.queue: deque[Micro] = deque()
        self.pause: Callable[[], None] = lambda: None

    def opened(self, session: SessionView) -> None:
        """Nothing is to be opened."""

    def guard(self, policy: Policy, saved: Mapping[str, Any]) -> Guard:
        """A guard that decides as production's did; where it ends the run, no update is taken."""
        known_good: Callable[[int], Any] | None = None
        if policy.may_roll_back:
            known_good = _no_generation
        return Guard(policy, state=saved or None, known_good=known_good)

    def read(self, generation: Path, parts: Parts) -> RankState:
        """This rank's state; what the loop's own code then makes of it is the `deployed` loader."""
        return load_verified(generation, dict(parts.model.named_parameters()))

    def loaded(self, loaded: Loaded) -> None:
        """The harness asks the session."""

    def between(self, session: SessionView) -> None:
        """Stand still until a step is handed over."""
        self.pause()

    def finish(self, session: SessionView) -> None:
        """A replay saves nothing."""

    def micros(self, session: SessionView) -> Iterator[Micro]:
        """What was handed over, step by step."""
        while True:
            if not self.queue:
                # the step is complete: a loop that asks for more stands at the end of an epoch
                return
            yield self.queue.popleft()

    def step(self, session: SessionView) -> AbstractContextManager[StepRecorder]:
        """The chain of the trial, or the record of a probe."""
        if self.probe is None:
            return self.recorder.step(self.number)
        return nullcontext(self.probe)


def _no_generation(before: int) -> None:
    """A replay rolls back to nowhere: its guard then stops, which only leaves the update out."""


class Replay:
    """The harness of one rank (`spiketriage.train.harness`) for a job that an adapter runs."""

    def __init__(
        self, context: Context, loop: Callable[[Session], None], policy: Policy | None
    ) -> None:
        self.context, self._loop, self._policy = context, loop, policy
        self._begin(None, "deployed")

    def environment(self) -> Identity:
        """Identity of this process."""
        return identity_of(self.context.run, self.context.code, self._session.parts)

    def capabilities(self) -> frozenset[str]:
        """What the adapter can set."""
        return frozenset({"loader=deployed", "loader=verified"}) | self._session.parts.capabilities

    def load(self, generation: Path, loader: str) -> Loaded:
        """End the paused loop, and bring a new one on new objects to its first step."""
        self._pausable.end()
        self._begin(generation, loader)
        assert self._session.loaded is not None
        return self._session.loaded

    def ids(self, step: int) -> Any:
        """This rank's batch at `step`, from the loaded cursor on."""
        for number, names in self._steps():
            if number == step:
                return ids_of(names)
        raise UsageError(f"step {step} lies before the loaded cursor")

    def read(self, ids: Any) -> list[Raw]:
        """The examples of every micro-batch."""
        source = self._session.parts.source
        micros: list[Raw] = []
        for number, keys in enumerate(ids["micros"]):
            name = MicroName(epoch=ids["epoch"], at=ids["at"] + number, keys=tuple(keys))
            micros.append(source.read(name))
        return micros

    def build(self, raw: list[Raw]) -> list[Micro]:
        """Those micro-batches, collated as the loader does."""
        return [self._session.parts.source.build(micro) for micro in raw]

    def forward_backward(
        self, batch: list[Micro], overrides: Overrides, record: StepRecorder
    ) -> None:
        """One pass on the current state, which is left as it was."""
        session, feed = self._session, self._feed
        feed.probe = record
        try:
            if session.parts.passes is not None:
                session.probe(batch, overrides, record)
                return
            feed.queue.extend(batch)
            with untouched(session.parts.model):
                self._pausable.resume()
        finally:
            feed.probe = None

    def step(self, step: int, recorder: Recorder, ids: Any = None) -> None:
        """Hand a step over, and let the loop run it."""
        feed = self._feed
        feed.recorder, feed.number = recorder, step
        if ids is None:
            ids = self.ids(step)
        feed.queue.extend(self.build(self.read(ids)))
        self._pausable.resume()
        if self._session.last_step != step:
            raise StepNotTakenError(f"the loop ended without having taken step {step}")

    def lr(self, step: int) -> float:
        """The rate of the next step, whatever its number: schedules are the framework's."""
        return learning_rate(self._session.parts)

    def hparams(self) -> Mapping[str, Any]:
        """As the adapter read them off the framework."""
        return self._session.parts.hparams

    def _begin(self, generation: Path | None, loader: str) -> None:
        self._feed = ReplayFeed(self.context.run, generation=generation, loader=loader)
        self._session = session = Session(self._feed, self._policy)
        self._pausable = PausableLoop(lambda: self._loop(session))
        self._feed.pause = self._pausable.pause
        self._pausable.resume()
        self._start = (session.last_step, session.epoch_number, session.at)

    def _steps(self) -> Iterator[tuple[int, list[MicroName]]]:
        """Names of every step's micro-batches from the loaded cursor on; an epoch may end short."""
        number, epoch, at = self._start
        parts = self._session.parts
        while True:
            left = parts.source.names(epoch, at, self._feed.left_out)
            while names := list(islice(left, parts.num_micro)):
                number += 1
                yield number, names
            epoch, at = epoch + 1, 0
