"""The replay side of a session, and the harness that the desk drives.

The job's own loop, parked between steps.

It never writes into the run and never runs a loop of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, cast

from spiketriage.errors import UsageError
from spiketriage.nouns.telemetry import Identity
from spiketriage.train.adapters.parked import Parked
from spiketriage.train.adapters.production import identity_of, read_left_out
from spiketriage.train.adapters.session import Session
from spiketriage.train.adapters.source import Micro, Raw, Wanted
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


class Fed:
    """A session's feed whose steps are handed over one by one; between them the loop is parked."""

    acts = False

    def __init__(self, run: Path, *, generation: Path | None, loader: str) -> None:
        self.generation, self.loader = generation, loader
        self.left_out = read_left_out(run)
        self.recorder = cast(Recorder, _NoRecorder())
        self.probe: StepRecorder | None = None
        self.number = 0
        self.queue: deque[Micro] = deque()
        self.park: Callable[[], None] = lambda: None

    def opened(self, session: Session) -> None:
        """Nothing is to be opened."""

    def guard(self, policy: Policy, saved: Mapping[str, Any]) -> Guard:
        """A guard that decides as production's did.

        Where that rolled back or stopped, the update is left out.
        """
        return Guard(
            policy,
            state=saved or None,
            known_good=(lambda before: None) if policy.may_roll_back else None,
        )

    def read(self, generation: Path, parts: Parts) -> RankState:
        """This rank's state; what the loop's own code then makes of it is the `deployed` loader."""
        return load_verified(generation, dict(parts.model.named_parameters()))

    def loaded(self, loaded: Loaded) -> None:
        """The harness asks the session."""

    def between(self, session: Session) -> None:
        """Stand still until a step is handed over."""
        self.park()

    def finish(self, session: Session) -> None:
        """A replay saves nothing."""

    def micros(self, session: Session) -> Iterator[Micro]:
        """What was handed over, step by step."""
        while True:
            if not self.queue:
                # the step is complete: a loop that asks for more stands at the end of an epoch
                return
            yield self.queue.popleft()

    def step(self, session: Session) -> AbstractContextManager[StepRecorder]:
        """The chain of the trial, or the record of a probe."""
        if self.probe is None:
            return self.recorder.step(self.number)
        return nullcontext(self.probe)


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
        """End the loop that stands, and let a new one on new objects come to its first step from `generation`."""
        self._parked.end()
        self._begin(generation, loader)
        assert self._session.loaded is not None
        return self._session.loaded

    def ids(self, step: int) -> Any:
        """This rank's batch at `step`, from the loaded cursor on."""
        for number, wanted in self._steps():
            if number == step:
                first = wanted[0]
                return {
                    "epoch": first.epoch,
                    "at": first.at,
                    "micros": [list(one.keys) for one in wanted],
                }
        raise UsageError(f"step {step} lies before the loaded cursor")

    def read(self, ids: Any) -> list[Raw]:
        """The examples of every micro-batch."""
        source = self._session.parts.source
        result: list[Raw] = []
        for n, keys in enumerate(ids["micros"]):
            result.append(
                source.read(Wanted(epoch=ids["epoch"], at=ids["at"] + n, keys=tuple(keys)))
            )
        return result

    def build(self, raw: list[Raw]) -> list[Micro]:
        """Those micro-batches, collated as the loader does."""
        return [self._session.parts.source.build(one) for one in raw]

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
                self._parked.go_on()
        finally:
            feed.probe = None

    def step(self, step: int, recorder: Recorder, ids: Any = None) -> None:
        """Hand a step over, and let the loop run it."""
        feed = self._feed
        feed.recorder, feed.number = recorder, step
        feed.queue.extend(self.build(self.read(self.ids(step) if ids is None else ids)))
        self._parked.go_on()
        if self._session.last_step != step:
            raise UsageError(f"the loop ended without having taken step {step}")

    def lr(self, step: int) -> float:
        """The learning rate of the next step, whatever its number.

        Schedules are the framework's.
        """
        return float(self._session.parts.optimizer.param_groups[0]["lr"])

    def hparams(self) -> Mapping[str, Any]:
        """As the adapter read them off the framework."""
        return self._session.parts.hparams

    def _begin(self, generation: Path | None, loader: str) -> None:
        self._feed = Fed(self.context.run, generation=generation, loader=loader)
        self._session = session = Session(self._feed, self._policy)
        self._parked = Parked(lambda: self._loop(session))
        self._feed.park = self._parked.park
        self._parked.go_on()
        self._start = (session.last_step, session.epoch_number, session.at)

    def _steps(self) -> Iterator[tuple[int, list[Wanted]]]:
        """Every step's micro-batches from the loaded cursor on.

        The last of an epoch may have fewer.
        """
        number, epoch, at = self._start
        parts = self._session.parts
        while True:
            names = parts.source.names(epoch, at, self._feed.left_out)
            while wanted := list(islice(names, parts.num_micro)):
                number += 1
                yield number, wanted
            epoch, at = epoch + 1, 0
