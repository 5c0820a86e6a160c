"""One training loop as this package sees it: every step recorded, judged and saved.

Production and replay use it alike. It never runs a forward pass or an optimizer itself: a loop or a
framework's adapter tells it what happens, in order:

    session.take(parts)  # everything is built; the generation to begin from is put in
    for batch in session.epoch():  # micro-batches, from the cursor to the end of the epoch
        session.begin()  # opens the step at its first micro-batch; takes note of the others
        session.micro()  # before each forward
        session.loss(loss_sum, num_tokens)
        norm = session.reduced()  # after the last backward, unscaled, before clipping
        if session.may_update(norm):  # the guard's word
            …  # clip by norm, optimizer.step()
            session.updated()  # before the scheduler's step and before zero_grad
            …  # scheduler.step()
        …  # zero_grad
        session.end()

Between steps (no step open, no micro-batch fetched) `epoch` saves what is due, or stands still
until a replay feeds the next step: a framework must not fetch the first batch of a step before the
step before has ended.
"""

# B rows, T positions.

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from spiketriage.errors import GuardStopError, UsageError
from spiketriage.train.adapters.batch import record_batch
from spiketriage.train.adapters.clip_link import learning_rate, record_clip
from spiketriage.train.adapters.feed import Feed
from spiketriage.train.adapters.layers import Layers
from spiketriage.train.adapters.source import Micro, ids_of
from spiketriage.train.adapters.state import Counters, Parts, held, put
from spiketriage.train.adapters.untouched import untouched
from spiketriage.train.generations.rank_state import RankState, digest_state
from spiketriage.train.guarding.guard import Decision, Guard, Policy
from spiketriage.train.harness import Loaded, Overrides
from spiketriage.train.recording import ddp, random_state
from spiketriage.train.recording.observer import Observer
from spiketriage.train.recording.step_recorder import StepRecorder


class RolledBack(Exception):
    """Leaves the loop so that it starts again from the generation that the guard chose."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.sentence)
        self.decision = decision


class Session:
    """One life of a loop, from its objects' construction to its end; a load begins another one."""

    parts: Parts

    def __init__(self, feed: Feed, policy: Policy | None) -> None:
        self.feed, self.policy = feed, policy
        self.last_step = self.epoch_number = self.at = 0
        self.is_save_due = False
        self.loaded: Loaded | None = None
        self.decision: Decision | None = None
        self._restored: RankState | None = None
        self._guard: Guard | None = None
        self._pending: list[Micro] = []
        self._num_begun = 0
        self._record: StepRecorder | None = None
        self._open: AbstractContextManager[StepRecorder] | None = None
        self._sums: list[Tensor] = []
        self._num_tokens: Tensor | float = 0.0
        self._totals = torch.zeros(2, dtype=torch.float64)
        self._stop: GuardStopError | None = None
        self._is_judged = self._is_taken = self._is_updated = False

    # --- the objects and their state

    def take(self, parts: Parts) -> None:
        """Watch these objects, and let them hold the generation to begin from.

        Whoever changes them between this and the first step, as a faulty resume does, is seen:
        digests are taken then.
        """
        self.parts = parts
        self.feed.opened(self)
        recorder = self.feed.recorder
        self._observer = Observer(parts.params.items(), parts.optimizer, recorder=recorder)
        self._layers = Layers(parts.blocks, recorder)
        if parts.reducer is not None:
            ddp.watch(parts.reducer, self._observer)  # type: ignore[arg-type]
        saved_guard: Mapping[str, Any] = {}
        if self.feed.generation is not None:
            saved_guard = self._restore(self.feed.generation).guard
        if self.policy is not None:
            self._guard = self.feed.guard(self.policy, saved_guard)

    def state(self) -> RankState:
        """Everything that this rank needs to go on, as it stands in memory."""
        cursor = {"step": self.last_step, "epoch": self.epoch_number, "at": self.at}
        guard: dict[str, Any] = {}
        if self._guard is not None:
            guard = self._guard.state()
        return held(
            self.parts, Counters(cursor=cursor, guard=guard, num_tokens=int(self._num_tokens))
        )

    def _restore(self, generation: Path) -> RankState:
        self._restored = state = self.feed.read(generation, self.parts)
        put(state, self.parts)
        self.last_step = int(state.cursor["step"])
        self.epoch_number, self.at = int(state.cursor["epoch"]), int(state.cursor["at"])
        self._num_tokens = float(state.num_tokens)
        return state

    def _settle(self) -> None:
        """The last moment before the first step: put generators back, digest what is there."""
        state, self._restored = self._restored, None
        if state is None or self.feed.generation is None:
            return
        if self.feed.loader == "verified":  # whatever the loop's code made of the first one since
            put(self.feed.read(self.feed.generation, self.parts), self.parts)
        random_state.restore(state.rng)
        digests = digest_state(self.state())
        self.loaded = Loaded(
            generation=self.feed.generation.name, step=self.last_step, digests=digests
        )
        self.feed.loaded(self.loaded)

    # --- the data

    @property
    def num_left(self) -> int:
        """Micro-batches between the cursor and the end of its epoch."""
        num_left_out = 0
        for name in self.feed.left_out:
            epoch, place = name.split(":")
            if int(epoch) == self.epoch_number and int(place) >= self.at:
                num_left_out += 1
        return len(self.parts.source) - self.at - num_left_out

    @property
    def is_at_end(self) -> bool:
        """Whether the micro-batch fetched last, in a probe or a step, is the last of its epoch."""
        last = self._pending[-1].name
        return all(
            f"{last.epoch}:{at}" in self.feed.left_out
            for at in range(last.at + 1, len(self.parts.source))
        )

    def start_epoch(self) -> int:
        """Move a cursor that stands at the end of an epoch to the next one; returns `num_left`.

        Raises:
            UsageError: an epoch has no micro-batch.
        """
        if not len(self.parts.source):
            raise UsageError("the data set is too small: an epoch has not one micro-batch")
        while self.num_left <= 0:
            self.epoch_number, self.at = self.epoch_number + 1, 0
        return self.num_left

    def epoch(self) -> Iterator[Any]:
        """The micro-batches from the cursor to the end of its epoch, as the loop's loader does."""
        self.start_epoch()
        micros = self.feed.micros(self)
        while True:
            if self._record is None and not self._pending:
                if self.num_left <= 0:
                    return
                self._settle()
                self.feed.between(self)
            micro = next(micros, None)
            if micro is None:
                return
            self._pending.append(micro)
            if self.feed.probe is None:
                self.epoch_number, self.at = micro.name.epoch, micro.name.at + 1
            yield micro.batch

    # --- a step

    @property
    def step(self) -> int:
        """Number of the step under way, or of the last one."""
        if self._record is None:
            return self.last_step
        return self._record.step

    @property
    def is_open(self) -> bool:
        """Whether a step is under way."""
        return self._record is not None

    @property
    def is_judged(self) -> bool:
        """Whether `may_update` has answered for the step under way."""
        return self._is_judged

    @property
    def is_taken(self) -> bool:
        """Whether the step's update is, or was, to be taken; false until `may_update` says so."""
        return self._is_taken

    def begin(self) -> None:
        """Open the step, unless it is open; take note of the micro-batches fetched since."""
        if self._record is None:
            self._open = self.feed.step(self)
            self._record = self._open.__enter__()
            self._start(self._record)
        for number, micro in enumerate(self._pending[self._num_begun :], self._num_begun):
            record_batch(self._record, number, micro)
        self._num_begun = len(self._pending)

    def micro(self) -> None:
        """The forward pass of the next micro-batch of the step begins."""
        self._layers.record, self._layers.number = self._record, len(self._sums)

    def loss(
        self, loss_sum: Tensor, num_tokens: Tensor | float, *, per_sample_B: Tensor | None = None
    ) -> None:
        """The loss of a micro-batch: nats summed over its valid tokens on this rank.

        `per_sample_B` is a mean per token of each row.
        """
        loss = loss_sum.detach().double().reshape(())
        count = torch.as_tensor(num_tokens, dtype=torch.float64, device=loss.device).reshape(())
        self._sums.append(torch.stack([loss, count]))
        if per_sample_B is not None and self._record is not None:
            self._record.series("loss/per_sample", per_sample_B.detach())

    def reduced(self) -> Tensor:
        """Record losses and gradients, collectively; returns the global norm before clipping.

        The norm is fp32 of shape () and equal on every rank.

        Raises:
            UsageError: no step is open, or nobody told a loss.
        """
        record = self._record
        if record is None or not self._sums:
            raise UsageError("begin and loss come before the gradients are looked at")
        record.ids(ids_of([micro.name for micro in self._pending]))
        documents: dict[str, str] = {}
        for micro in self._pending:
            documents |= micro.documents
        record.content(documents)
        self._layers.finish(record)
        local = torch.stack(self._sums).sum(0)
        self._totals = local.clone()
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(self._totals)
        record.tensor("loss", "sum", local[0])
        record.log({"loss/sum": local[0], "loss/mean": self._totals[0] / self._totals[1]})
        record.log({"tokens/valid": local[1], "tokens/valid_global": self._totals[1].clone()})
        if self.parts.reducer is None:
            self._observer.local_gradients(record)
        return self._observer.reduced_gradients(record)

    def may_update(self, norm: Tensor) -> bool:
        """Whether the update is to be taken; with a guard, collective and a host sync."""
        record = self._open_record()
        record_clip(record, self._observer, self.parts, norm)
        self._is_judged = True
        if self.feed.probe is not None:
            return False
        self._is_taken, self.decision = True, None
        if self._guard is not None:
            self.decision = self._decide(self._guard, norm)
            record.log(self.decision.metrics())
            if self.decision.sentence:
                record.anomaly(self.decision.sentence)
            self._is_taken = not self.decision.skip
        return self._is_taken

    def updated(self) -> None:
        """Record what the update did: after the optimizer's step, before the scheduler's.

        Gradients must still be there.

        The guard is not told: a recorder that is over its budget measures some updates only, and a
        replay, which measures each, would then decide otherwise than production did.
        """
        self._observer.updated(self._open_record())
        self._is_updated = True

    def end(self) -> None:
        """Close the step; then what the guard asked for.

        Raises:
            GuardStopError, RolledBack: the guard's word, in production alone.
        """
        record, opened = self._open_record(), self._open
        assert opened is not None
        if self._is_taken and not self._is_updated:
            raise UsageError(
                "the update was not told of: call updated() right after the optimizer's step"
            )
        if self.feed.probe is None:
            if not self._is_taken:
                record.log({"lr": learning_rate(self.parts)})
                record.tensors("params_after", self._observer.parameters)
            self.last_step = record.step
            self._num_tokens = self._num_tokens + self._totals[1]
            record.log({"tokens/total": self._num_tokens})
        self._forget()
        opened.__exit__(None, None, None)
        if self.feed.acts and self._stop is not None:
            raise self._stop
        if self.feed.acts and self.decision is not None and self.decision.rollback:
            raise RolledBack(self.decision)

    def finish(self) -> None:
        """The last step is over: what is due is saved now."""
        self.feed.finish(self)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """A step that is open when the loop raises leaves no record, which is evidence itself."""
        opened = self._open
        if error is not None and opened is not None:
            self._forget()
            opened.__exit__(kind, error, trace)

    # --- one pass that changes nothing

    def probe(self, micros: Sequence[Micro], overrides: Overrides, record: StepRecorder) -> None:
        """Forward and backward of these micro-batches; the state is left as it was."""
        passes = self.parts.passes
        assert passes is not None
        with untouched(self.parts.model):
            self._pending, self._record = list(micros), record
            self._start(record)
            self._num_begun = 0
            self.begin()
            passes([micro.batch for micro in micros], overrides)
            self.may_update(self.reduced())
            self._forget()

    # --- inside

    def _open_record(self) -> StepRecorder:
        if self._record is None:
            raise UsageError("no step is open")
        return self._record

    def _start(self, record: StepRecorder) -> None:
        first = self._pending[0].name
        record.capture({"step": self.last_step, "epoch": first.epoch, "at": first.at})
        self._observer.recorder = self.feed.recorder
        self._layers.tell_to(self.feed.recorder)
        self._observer.begin(record)

    def _forget(self) -> None:
        self._record = self._open = self._layers.record = None
        self._pending, self._sums, self._num_begun = [], [], 0
        self._is_judged = self._is_taken = self._is_updated = False

    def _decide(self, guard: Guard, norm: Tensor) -> Decision:
        overflow = self.parts.scaler is not None and not bool(torch.isfinite(norm))
        try:
            return guard.decide(
                step=self.step,
                loss_sum=self._totals[0],
                num_tokens=self._totals[1],
                grad_norm=norm,
                lr=learning_rate(self.parts),
                overflow=overflow,
                ids=[f"{micro.name.epoch}:{micro.name.at}" for micro in self._pending],
            )
        except GuardStopError as stop:
            self._stop = stop  # the step's record is evidence: it is finished before the job ends
            return guard.last
