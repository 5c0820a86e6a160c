"""The guard in the training loop: it judges each step by the rules of `spiketriage.detect`.

All ranks decide alike. It never changes a parameter, loads a generation or moves a cursor itself:
the loop does, as the decision says.

    guard = Guard(Policy(outlier="skip"), state=generation.guard)  # state=None at a run's start
    with exit_with_code():  # a stop ends the process with exit code 10, on every rank
        for step, batch in enumerate(batches, first):
            loss_sum, num_tokens = forward_backward(batch)  # both over all ranks, as for the log
            clipped = clip_(model.parameters(), 1.0)
            decision = guard.decide(
                step=step, loss_sum=loss_sum, num_tokens=num_tokens, grad_norm=clipped.norm, lr=lr
            )
            if not decision.skip:  # a skip: nothing is called, so nothing can change
                optimizer.step(), scheduler.step(), ema.update_parameters(model)
            optimizer.zero_grad(set_to_none=True)  # a skipped step's gradients are dropped
            record.log(decision.metrics())  # inside the recorder's step

With a rollback in the policy, the guard is `Guard(policy, known_good=newest)`, where `newest(step)`
gives the newest known-good generation older than `step`, and the loop does as it says:

            if decision.rollback:
                loaded = load(decision.generation)
                guard.rolled_back(loaded.guard)
                sampler.leave_out(guard.skip_ids)

- Accounts: a skipped step is a step. It has drawn from the generators and its batch is consumed, so
  cursor, tokens and RNG stand where they would after a taken one; a scheduler that steps with the
  optimizer stands at `num_taken`.
- fp16: pass `loss_scale` and `overflow`; a normal overflow is the scaler's own business and no
  verdict. On a guard's skip the loop leaves the scaler alone too.
- What the update alone shows (update norm, RMS_t) goes to `finish` after it. A verdict on it, or on
  a lasting shift, takes part in the next step's vote: it can alert, roll back or stop, not undo.
- An optimizer that cannot be held back (it steps inside backward, or in a fused engine) is taken
  back by `spiketriage.train.guarding.undo.UndoCopy`, at the price of a second copy of its state.
- The forward pass may have moved buffers (BatchNorm) before the decision: those are the loop's, or
  the undo copy's.
- A rollback by ending the process and starting another one on an older generation takes the
  patience back too, for the generation knows nothing of later verdicts: roll back inside the
  process, or keep `state()` apart.

Sources: skip by selection, not by a factor of 0, since 0 · NaN = NaN; PaLM (arXiv 2204.02311,
section 5.1) for rollback and leaving batches out. One all-reduce of six integers a step, see
`agree`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from spiketriage.detect.detector import Alarm, Detector, Row, Verdict
from spiketriage.errors import EvidenceError, GuardStopError, SpiketriageError, UsageError
from spiketriage.train.guarding.agree import Ballot, Outcome, Vote, union
from spiketriage.train.guarding.decision import Decision, code_of, no_verdict, verdict_of
from spiketriage.train.guarding.policy import INTERVENTIONS, Action, Policy, is_far_out, kind_of
from spiketriage.train.guarding.state import (
    Accounts,
    Patience,
    Recent,
    alarm_from_json,
    alarm_to_json,
    row_from_json,
    row_to_json,
    vote_digest,
)

__all__ = ["Decision", "Guard", "Policy", "exit_with_code"]

NAME = "guard"
LIFTS = ("Guard", "Policy")
REMOVES = (
    "A NaN or an outlier that one step writes into the weights for good; ranks that decide apart."
)
COST = "Six numbers all-reduced a step, and one host sync."
WHEN = "From step 0 for nonfinites, for outliers once the bands are known (64 steps)."

SCHEMA = 1  # of Guard.state()

Value = Tensor | float | None


class Guard:
    """One rank's guard: `decide` before each update, `finish` after it where there is more to tell.

    `known_good(step)` is called on the group's first rank only and returns the newest known-good
    generation older than `step`, or None; what it returns must be picklable. `group` holds every
    rank of the model (default: all), and `timeout_s` bounds the wait for a rank.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        state: Mapping[str, Any] | None = None,
        known_good: Callable[[int], Any] | None = None,
        group: dist.ProcessGroup | None = None,
        timeout_s: float = 600.0,
    ) -> None:
        if policy.may_roll_back and known_good is None:
            raise UsageError(
                "a policy that rolls back needs known_good, which finds the generation"
            )
        self.policy = policy
        self._known_good = known_good
        self._ballot = Ballot(group=group, timeout_s=timeout_s)
        self._detector = Detector()
        self.accounts = Accounts()
        self._patience = Patience()
        self._recent = Recent()
        self.skip_ids: tuple[Any, ...] = ()  # what rollbacks leave out, over the whole run
        self._row: Row | None = None  # judged, not yet learned from
        self._raised: tuple[Alarm, ...] = ()  # the alarms of that row, voted on already
        self._late: tuple[Alarm, ...] = ()  # what its update showed: for the next vote
        self.last = no_verdict(-1)  # the newest decision
        if state is not None:
            self.restore(state)

    def decide(
        self,
        *,
        step: int,
        loss_sum: Value,
        num_tokens: Tensor | float,
        grad_norm: Value = None,
        lr: float | None = None,
        logz: Value = None,
        attention_max: Value = None,
        loss_scale: float | None = None,
        overflow: bool = False,
        saw_nonfinite: Tensor | bool = False,
        ids: Sequence[Any] = (),
    ) -> Decision:
        """Judge a step before its update; collective, and every rank gets the same answer.

        `loss_sum` (nats) over `num_tokens` valid tokens, both over all ranks; with a rank's own the
        ranks still agree, but each judges a noisier loss. None is a missing loss. `grad_norm` is
        the norm after the reduction and before clipping. Tensors are of one element and read
        together: one host sync. `overflow` says that loss scaling leaves this update out anyway, on
        all ranks alike (`unscale_` does), `saw_nonfinite` that this rank met a nonfinite that these
        numbers need not show. `ids` (int or str) name this rank's batch, for a rollback to leave
        out: documents, or one cursor position.

        Raises:
            GuardStopError: the decision is to stop, on every rank; `last` holds it.
            AgreementError: a rank did not answer (named where possible), or ranks have parted.
        """
        self._learn()
        total, count, norm, z, attention, flag = _read(
            loss_sum, num_tokens, grad_norm, logz, attention_max, saw_nonfinite
        )
        row = Row(
            step=step,
            loss=_mean(total, count),
            grad_norm=norm,
            lr=lr,
            logz=z,
            attention_max=attention,
            loss_scale=loss_scale,
            skipped=overflow,
        )
        verdict = self._detector.peek(row)
        outcome = self._vote(step, verdict, saw_nonfinite=verdict.is_nonfinite or bool(flag))
        began = min((alarm.step for alarm in self._late), default=step)
        self._recent.add(step, ids)
        decision = self._act(
            step, outcome, (*verdict.alarms, *self._late), began, is_taken=not overflow
        )
        self.accounts.add(num_tokens=_count(count), is_skip=decision.skip or overflow)
        self._row, self._raised, self._late = row, verdict.alarms, ()
        self.last = decision
        if decision.action == "stop":
            raise GuardStopError(decision.sentence, hint="spiketriage triage")
        return decision

    def _vote(self, step: int, verdict: Verdict, *, saw_nonfinite: bool) -> Outcome:
        code = self._code(step, verdict.alarms, saw_nonfinite=saw_nonfinite)
        digest = vote_digest(self.accounts, self._patience)
        return self._ballot.agree(
            Vote(step=step, code=code, saw_nonfinite=saw_nonfinite, digest=digest)
        )

    def finish(self, *, update_norm: Value = None, rms_t: Value = None) -> tuple[Alarm, ...]:
        """Tell what the update of the step just decided showed; returns this rank's new alarms.

        Optional, not collective, one host sync for tensors. `update_norm` is the L2 norm of
        parameters after minus before, `rms_t` as `wire.chain` names it; both global. After a skip
        there was no update, and they are passed over.

        Raises:
            UsageError: no step was decided since the last call.
        """
        if self._row is None:
            raise UsageError("finish belongs after decide, once a step")
        if not self.last.skip:
            update, rms = _read(update_norm, rms_t)
            self._row = replace(self._row, update_norm=update, rms_t=rms)
        self._learn()
        return self._late

    def state(self) -> dict[str, Any]:
        """All that later decisions rest on, as plain JSON; each rank saves its own."""
        return {
            "schema": SCHEMA,
            "detector": self._detector.state(),
            "accounts": asdict(self.accounts),
            "patience": asdict(self._patience),
            "recent": self._recent.state(),
            "skip_ids": list(self.skip_ids),
            "row": row_to_json(self._row),
            "was_skipped": self._row is not None and self.last.skip,
            "told": [alarm_to_json(alarm) for alarm in self._raised],
            "late": [alarm_to_json(alarm) for alarm in self._late],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state()` as if nothing had been between.

        Raises:
            EvidenceError: it is no state of this guard, or of another version of the rules.
        """
        try:
            if state["schema"] != SCHEMA:
                raise EvidenceError(f"guard state of schema {state['schema']!r}, expected {SCHEMA}")
            self._detector = Detector.restore(state["detector"])
            self.accounts = Accounts(**state["accounts"])
            self._patience = Patience(
                **{**state["patience"], "repeats": dict(state["patience"]["repeats"])}
            )
            self._recent = Recent(state["recent"])
            self.skip_ids = tuple(state["skip_ids"])
            self._row = row_from_json(state["row"])
            self._raised = tuple(alarm_from_json(stored) for stored in state["told"])
            self._late = tuple(alarm_from_json(stored) for stored in state["late"])
            action: Action = "none"
            if state["was_skipped"]:
                action = "skip"
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise EvidenceError(
                f"guard state cannot be read: {error!r}", hint="start the guard anew"
            ) from error
        last_step = -1
        if self._row is not None:
            last_step = self._row.step
        self.last = no_verdict(last_step, action)

    def rolled_back(self, state: Mapping[str, Any] | None) -> None:
        """Go on from the guard's state in the generation that was loaded (None: it has none).

        Detector and accounts go back with everything else; patience and `skip_ids` stay, or the
        same rollback could come for ever.
        """
        patience, skip_ids = self._patience, self.skip_ids
        if state is None:
            self._detector, self.accounts, self._recent = Detector(), Accounts(), Recent()
            self._row, self._raised, self._late = None, (), ()
        else:
            self.restore(state)
        self._patience, self.skip_ids = patience, skip_ids

    def _learn(self) -> None:
        """Learn from the row that was judged; alarms that it raises only now join the next vote."""
        if self._row is None:
            return
        known = {(alarm.signal, alarm.trigger) for alarm in self._raised}
        alarms = self._detector.feed(self._row).alarms
        self._late = tuple(alarm for alarm in alarms if (alarm.signal, alarm.trigger) not in known)
        self._row, self._raised = None, ()

    def _code(self, step: int, alarms: Sequence[Alarm], *, saw_nonfinite: bool) -> int:
        """This rank's gravest verdict as a number: the action first, then the kind; 0 is none."""
        gravest = 0
        if saw_nonfinite:
            gravest = code_of(self.policy.action("nonfinite", step), "nonfinite")
        for alarm in alarms:
            kind = kind_of(alarm.trigger)
            action = self.policy.action(kind, step, is_far_out=is_far_out(alarm))
            gravest = max(gravest, code_of(action, kind))
        for alarm in self._late:
            kind = kind_of(alarm.trigger)
            action = self.policy.action(kind, step, is_far_out=is_far_out(alarm))
            if action == "skip":
                action = "alert"  # the update was taken
            gravest = max(gravest, code_of(action, kind))
        return gravest

    def _act(
        self, step: int, outcome: Outcome, alarms: tuple[Alarm, ...], began: int, *, is_taken: bool
    ) -> Decision:
        action, kind = verdict_of(outcome.code)
        num_repeats = 0
        if kind is not None and action in INTERVENTIONS:
            action = self._patience.failed(step, kind, action, self.policy)
        elif is_taken:
            self._patience.passed(step, self.policy)
        if kind is not None:
            num_repeats = self._patience.repeats.get(kind, 0)
        decision = Decision(
            step=step,
            action=action,
            kind=kind,
            rank=outcome.rank,
            nonfinite_rank=outcome.nonfinite_rank,
            num_repeats=num_repeats,
            alarms=alarms,
        )
        if action == "rollback":
            return self._roll_back(decision, began)
        return decision

    def _roll_back(self, decision: Decision, began: int) -> Decision:
        """The generation to load and the batches to leave out, the same on every rank.

        Without a known-good generation the decision becomes a stop.
        """
        of_ranks = self._ballot.gather((began, self._recent.state()))
        onset = min(first for first, _ in of_ranks)
        skip_ids = union([Recent(batches).since(onset) for _, batches in of_ranks])
        generation = self._ballot.from_first(
            lambda: self._known_good(onset) if self._known_good else None
        )
        if generation is None:
            return replace(decision, action="stop")
        self._patience.num_rollbacks += 1
        self.skip_ids = union([self.skip_ids, skip_ids])
        return replace(decision, generation=generation, skip_ids=skip_ids)


@contextmanager
def exit_with_code() -> Iterator[None]:
    """End the process with an error's own exit code, its sentence on stderr and no traceback.

    torchrun itself then still exits with 1; its report names the code of each rank.
    """
    try:
        yield
    except SpiketriageError as error:
        hint = ""
        if error.hint:
            hint = f"\n\nhint: {error.hint}"
        print(f"{error.message}{hint}", file=sys.stderr, flush=True)
        raise SystemExit(error.exit_code) from error


def _mean(total: float | None, count: float) -> float | None:
    if total is None:
        return None
    if count:
        return total / count
    return math.nan


def _read(*values: Value) -> list[Any]:
    """All values as floats (None stays), the tensors in one transfer."""
    tensors: list[Tensor] = []
    for value in values:
        if isinstance(value, DTensor):
            tensors.append(value.full_tensor().detach().reshape(()))
        elif isinstance(value, Tensor):
            tensors.append(value.detach().reshape(()))
    if not tensors:
        return list(values)
    device = torch.device("cpu")
    for tensor in tensors:
        if tensor.device.type != "cpu":
            device = tensor.device
    stacked = torch.stack([tensor.to(device, torch.float64) for tensor in tensors])
    numbers: Iterator[float] = iter(stacked.tolist())
    return [next(numbers) if isinstance(value, Tensor) else value for value in values]


def _count(num_tokens: float) -> int:
    if math.isfinite(num_tokens):
        return int(num_tokens)
    return 0
