"""One vote of all ranks a step: a small all-reduce with one result for all and a bounded wait.

It never decides anything on one rank alone, and never waits for a rank without an end or without
naming it.

The vote is six int64 numbers reduced by MAX, so the outcome rests on no rank's arithmetic: ranks
whose numbers differ in the last bit (other hosts, other libm) still end with one outcome. On gloo
the wait is bounded by `timeout_s`, and a store entry that is written only after a second of waiting
tells which ranks came. On NCCL the same code polls the work object; that path is written against
the public API and untested. A gloo group beside NCCL (`init_process_group("cpu:gloo,cuda:nccl")`,
or `dist.new_group(backend="gloo")`) takes the tested one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from spiketriage.errors import AgreementError

PATIENCE_S = 1.0  # of waiting before a rank leaves its mark in the store: a normal step never does
POLL_S = 1e-4
_RANK_BITS = 24
_LAST_RANK = (1 << _RANK_BITS) - 1

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """What one rank brings: its gravest verdict, whether it saw a nonfinite, and two proofs.

    `code` is the verdict as a number below 2^38, 0 for none. `step` (the step under way) and
    `digest` (what later outcomes rest on, below 2^62) must be equal on all ranks.
    """

    step: int
    code: int
    saw_nonfinite: bool
    digest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The gravest code, the lowest rank that brought it, and the lowest that saw a nonfinite."""

    code: int
    rank: int | None
    nonfinite_rank: int | None


class Ballot:
    """The group that votes; without a process group there is one voter.

    `timeout_s` bounds the wait for a vote.
    """

    def __init__(self, *, group: dist.ProcessGroup | None = None, timeout_s: float = 600.0) -> None:
        self._group, self._timeout_s = group, timeout_s
        self._alone = not dist.is_initialized() or dist.get_world_size(group) == 1
        self._rank = 0
        self._members = [0]
        self._device = torch.device("cpu")
        self._num_votes = 0
        if self._alone:
            return
        self._rank = dist.get_rank(group)
        self._members = dist.get_process_group_ranks(group or dist.group.WORLD)
        if dist.get_backend(group) == "nccl":
            self._device = torch.device("cuda", torch.cuda.current_device())

    def agree(self, vote: Vote) -> Outcome:
        """The outcome, equal on every rank; collective.

        There is one host sync where the group lives on an accelerator.

        Raises:
            AgreementError: a rank did not answer in time, or was lost (named where the store
                knows); or the ranks are at different steps, or bring different digests.
        """
        numbers = [
            _ranked(int(vote.saw_nonfinite), self._rank),
            _ranked(vote.code, self._rank),
            vote.step,
            -vote.step,
            vote.digest,
            -vote.digest,
        ]
        if not self._alone:
            votes = torch.tensor(numbers, dtype=torch.int64, device=self._device)
            self._reduce(votes, vote.step)
            numbers = votes.tolist()
        last_step, first_step = numbers[2], -numbers[3]
        if first_step != last_step:
            raise AgreementError(
                f"ranks vote on different steps, {first_step} to {last_step}; "
                f"this one on {vote.step}"
            )
        if numbers[4] != -numbers[5]:
            raise AgreementError(
                f"step {vote.step}: the guard's counters differ between ranks",
                hint="restore the guard of every rank from the same generation",
            )
        _, nonfinite_rank = self._unranked(numbers[0])
        code, rank = self._unranked(numbers[1])
        return Outcome(code=code, rank=rank, nonfinite_rank=nonfinite_rank)

    def gather(self, own: Made) -> list[Made]:
        """Every rank's value, in the order of ranks; collective, for small picklable values."""
        if self._alone:
            return [own]
        gathered: list[Any] = [None] * len(self._members)
        dist.all_gather_object(gathered, own, group=self._group)
        return gathered

    def from_first(self, make: Callable[[], Made]) -> Made:
        """What `make` returns on the group's first rank, on every rank; collective.

        Raises:
            AgreementError: on the other ranks, when `make` raised on the first.
        """
        if self._alone:
            return make()
        answer: list[Any] = [None, None]  # what was made, or why it was not
        if self._rank == 0:
            try:
                answer[0] = make()
            except BaseException as error:
                answer[1] = f"{type(error).__name__}: {error}"
                dist.broadcast_object_list(answer, src=self._members[0], group=self._group)
                raise
        dist.broadcast_object_list(answer, src=self._members[0], group=self._group)
        if answer[1] is not None:
            raise AgreementError(f"rank {self._members[0]} failed for all: {answer[1]}")
        made: Made = answer[0]
        return made

    def _unranked(self, ranked: int) -> tuple[int, int | None]:
        if ranked:
            return (ranked >> _RANK_BITS, self._members[_LAST_RANK - (ranked & _LAST_RANK)])
        return (0, None)

    def _reduce(self, votes: Tensor, step: int) -> None:
        work = dist.all_reduce(votes, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        self._num_votes += 1
        began_s = time.monotonic()
        failure = self._wait(work, min(PATIENCE_S, self._timeout_s))
        if failure is None:
            return
        mark = f"spiketriage/guard/{self._num_votes}"
        is_marked = self._ask_store(lambda store: store.set(f"{mark}/{self._rank}", "here") or True)
        if not work.is_completed():
            failure = self._wait(work, self._timeout_s - (time.monotonic() - began_s))
        elif failure:
            time.sleep(PATIENCE_S)  # the others leave their marks
        if failure is None:
            return
        raise AgreementError(
            self._silence(step, mark, failure, is_marked=bool(is_marked)),
            hint="look at that rank first",
        )

    def _wait(self, work: Any, timeout_s: float) -> str | None:
        """None when the vote is complete, else what went wrong."""
        try:
            if self._device.type == "cpu":
                work.wait(timedelta(seconds=max(timeout_s, 1e-3)))
                return None
            deadline_s = time.monotonic() + timeout_s
            while not work.is_completed():
                if time.monotonic() > deadline_s:
                    return "no answer"
                time.sleep(POLL_S)
            work.wait()
        except RuntimeError as error:  # torch raises nothing narrower for a timeout or a lost peer
            if not work.is_completed():
                return "no answer"
            return str(error).split(". ")[0]
        return None

    def _silence(self, step: int, mark: str, failure: str, *, is_marked: bool) -> str:
        """The sentence that says who did not answer, as far as the store knows."""
        absent: list[int] | None = None
        if is_marked:
            absent = self._ask_store(lambda store: self._without_mark(store, mark))
        if failure == "no answer":
            waited = f"within {self._timeout_s:g} s"
        else:
            waited = f"(connection lost: {failure})"
        if absent is None:
            return (
                f"step {step}: a rank did not answer the guard's vote {waited}; the store that "
                "could name it is silent"
            )
        names = ", ".join(str(rank) for rank in absent) or "none (all came in the end)"
        return f"step {step}: no answer to the guard's vote {waited} from rank {names}"

    def _without_mark(self, store: Any, mark: str) -> list[int]:
        absent = []
        for number, rank in enumerate(self._members):
            if not store.check([f"{mark}/{number}"]):
                absent.append(rank)
        return absent

    def _ask_store(self, ask: Callable[[Any], Made]) -> Made | None:
        """The store's answer; None without a store, or if it hangs with the rank that holds it."""
        answers: list[Made] = []

        def answer() -> None:
            store = getattr(self._group or dist.group.WORLD, "get_group_store", lambda: None)()
            try:
                if store is not None:
                    answers.append(ask(store))
            except RuntimeError:  # DistStoreError, DistNetworkError: nobody can be named
                return

        asking = threading.Thread(target=answer, name="guard-store", daemon=True)
        asking.start()
        asking.join(2 * PATIENCE_S)
        if answers:
            return answers[0]
        return None


def union(parts: Sequence[Sequence[Hashable]]) -> tuple[Any, ...]:
    """The distinct values of all parts in the order in which they first appear."""
    return tuple(dict.fromkeys(value for part in parts for value in part))


def _ranked(code: int, rank: int) -> int:
    """A number whose maximum is the gravest code, and of equal ones that of the lowest rank."""
    if code:
        return code << _RANK_BITS | (_LAST_RANK - rank)
    return 0
