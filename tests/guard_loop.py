"""A small whole training loop under the guard (dropout, AdamW, scheduler, loss scale, EMA, cursor), and three ranks.

It is what the guard's tests train: every bit of its state can be compared, saved as bytes, and gone
on from.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rank_processes import run_ranks
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from spiketriage import digests
from spiketriage.errors import AgreementError
from spiketriage.train.guarding.agree import Ballot, Vote
from spiketriage.train.guarding.guard import Guard, Policy, exit_with_code
from spiketriage.train.guarding.undo import UndoCopy
from spiketriage.train.stabilizers import clip, loss_scale

NUM_RANKS = 3
RULE = loss_scale.ScaleRule(interval=8)
POLICY = Policy(outlier="skip", max_repeats=100)

Faults = Mapping[int, tuple[str, int]]  # step: kind, rank


class Loop:
    """One rank. `holds` takes the update first and puts it back if the guard says so."""

    def __init__(self, faults: Faults, *, policy: Policy = POLICY, holds: bool = False) -> None:
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world_size = dist.get_world_size() if dist.is_initialized() else 1
        torch.manual_seed(5)
        self.model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.2), nn.GELU(), nn.Linear(16, 1))
        self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda at: min(1.0, (at + 1) / 20)
        )
        self.scale = loss_scale.ScaleState(scale=2.0**10)
        self.cursor = self.step = self.num_tokens = 0
        self.faults, self.policy, self.holds = faults, policy, holds
        self.guard = Guard(policy)
        self.told: list[tuple[Any, ...]] = []
        self.kept: list[bool] = []
        torch.manual_seed(100 + self.rank)

    def train(self, last: int) -> Loop:
        """Steps up to `last`."""
        while self.step < last:
            self.train_step()
        return self

    def train_step(self) -> None:
        """One step as a user would write it."""
        self.step += 1
        loss_sum, num_tokens = self._forward_backward(*self._batch())
        finite = loss_scale.unscale_(self.model.parameters(), self.scale.scale)
        norm = clip.clip_(self.model.parameters(), 1.0).norm
        before = self.bits()
        undo = UndoCopy(
            [*self.model.parameters(), *self.ema.parameters(), *self.ema.buffers()], **self._rest()
        )
        if self.holds:
            undo.take()
            self._update(finite=finite)
        decision = self.guard.decide(
            step=self.step,
            loss_sum=loss_sum,
            num_tokens=num_tokens,
            grad_norm=norm,
            lr=self.scheduler.get_last_lr()[0],
            loss_scale=self.scale.scale,
            overflow=not finite,
            ids=[self.cursor],
        )
        if self.holds and (decision.skip or not finite):
            undo.put_back()
        elif not self.holds and not decision.skip:
            self._update(finite=finite)
        if not decision.skip:
            self.scale = loss_scale.after(self.scale, finite=finite, rule=RULE)
        else:
            self.kept.append(self.bits() == before)
        self.optimizer.zero_grad(set_to_none=True)
        self.num_tokens += int(num_tokens)
        self.told.append(
            (self.step, decision.action, decision.kind, decision.rank, decision.nonfinite_rank)
        )

    def bits(self) -> dict[str, Any]:
        """What a skip must leave alone, as digests of bytes.

        NaN equals itself, and 0.0 is not -0.0.
        """
        moments = {
            str(n): state for n, state in enumerate(self.optimizer.state_dict()["state"].values())
        }
        return {
            "model": _bits(self.model.state_dict()),
            "ema": _bits(self.ema.state_dict()),
            "moments": {n: _bits(state) for n, state in moments.items()},
            "groups": str(self.optimizer.state_dict()["param_groups"]),
            "scheduler": str(self.scheduler.state_dict()),
            "scale": self.scale.to_json(),
        }

    def accounts(self) -> dict[str, Any]:
        """What a skip must move on."""
        rng = digests.of_bytes(torch.get_rng_state().numpy().tobytes())
        return {"step": self.step, "cursor": self.cursor, "tokens": self.num_tokens, "rng": rng}

    def everything(self) -> dict[str, Any]:
        """All state, the guard's included, comparable."""
        return {
            **self.bits(),
            **self.accounts(),
            "guard": json.dumps(self.guard.state(), allow_nan=False),
        }

    def save(self) -> bytes:
        """A generation."""
        buffer = io.BytesIO()
        parts = (self.model, self.ema, self.optimizer, self.scheduler)
        state = {
            "parts": [part.state_dict() for part in parts],
            "counts": (self.step, self.cursor, self.num_tokens),
            "scale": self.scale.to_json(),
            "rng": torch.get_rng_state(),
            "guard": json.dumps(self.guard.state(), allow_nan=False),
        }
        torch.save(state, buffer)
        return buffer.getvalue()

    @classmethod
    def resume(cls, saved: bytes, faults: Faults, **options: Any) -> Loop:
        """A new process's loop on a generation."""
        state = torch.load(io.BytesIO(saved), weights_only=False)
        loop = cls(faults, **options)
        for part, value in zip(
            (loop.model, loop.ema, loop.optimizer, loop.scheduler), state["parts"], strict=True
        ):
            part.load_state_dict(value)
        loop.step, loop.cursor, loop.num_tokens = state["counts"]
        loop.scale = loss_scale.from_json(state["scale"])
        torch.set_rng_state(state["rng"])
        loop.guard = Guard(loop.policy, state=json.loads(state["guard"]))
        return loop

    def _rest(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer, "others": (self.scheduler,)}

    def _batch(self) -> tuple[Tensor, Tensor]:
        """The cursor's batch: this rank's rows (8, 6) and targets (8, 1)."""
        drawn = torch.Generator().manual_seed(1000 * self.cursor + self.rank)
        self.cursor += 1
        rows = torch.randn(8, 6, generator=drawn)
        return rows, rows.sum(1, keepdim=True) + 3

    def _forward_backward(self, rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        kind = self._fault()
        if kind == "spike":
            targets = targets * 40
        errors = (self.model(rows) - targets).square()
        totals = torch.stack([errors.sum().detach(), torch.tensor(float(len(rows)))])
        if kind == "nan-loss":
            totals[0] = float("nan")
        self._sum(totals)
        (errors.sum() / totals[1] * self.scale.scale).backward()
        if kind in ("nan-gradient", "nan-loss"):
            next(self.model.parameters()).grad[0, 0] = float("nan")
        for parameter in self.model.parameters():
            self._sum(parameter.grad)
        return totals[0], totals[1]

    def _fault(self) -> str:
        kind, rank = self.faults.get(self.step, ("", 0))
        return kind if rank == self.rank else ""

    def _sum(self, tensor: Tensor) -> None:
        if self.world_size > 1:
            dist.all_reduce(tensor)

    def _update(self, *, finite: bool) -> None:
        """With `holds`, what a fused engine would do: it has no eyes."""
        if finite or self.holds:
            self.optimizer.step()
            self.scheduler.step()
            self.ema.update_parameters(self.model)


def _bits(state: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: digests.of_bytes(value.detach().contiguous().numpy().tobytes())
        for name, value in state.items()
        if isinstance(value, Tensor)
    }


# Three ranks
# ------------------------------------------------------------------------------------------------------


def start(folder: Path) -> tuple[list[dict[str, Any]], list[int | None], list[str]]:
    """Run every case on three ranks.

    What each rank reports by case, its exit code, and its last words.
    """
    exit_codes = run_ranks(_rank, NUM_RANKS, str(folder))
    told = [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(NUM_RANKS)]
    words = [(folder / f"rank-{rank}.err").read_text() for rank in range(NUM_RANKS)]
    return told, exit_codes, words


def _rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=NUM_RANKS
    )
    told = {case.__name__: case(rank) for case in CASES}
    torch.save(told, Path(folder) / f"rank-{rank}.pt")
    with (Path(folder) / f"rank-{rank}.err").open("w") as words:
        sys.stderr = words  # exit_with_code speaks there
        stopped(rank)


RANK_FAULTS: Faults = {
    9: ("nan-gradient", 1),
    75: ("nan-loss", 2),
    80: ("spike", 0),
    83: ("nan-gradient", 2),
    84: ("nan-loss", 1),
}


def resumed(rank: int) -> dict[str, Any]:
    """Three ranks that go through, against three that stop and go on, twice."""
    through = Loop(RANK_FAULTS).train(90)
    first = Loop(RANK_FAULTS).train(75)
    second = Loop.resume(first.save(), RANK_FAULTS).train(80)
    third = Loop.resume(second.save(), RANK_FAULTS).train(90)
    return {
        "told": through.told,
        "resumed": [*first.told, *second.told, *third.told],
        "same": through.everything() == third.everything(),
        "kept": through.kept,
        "model": through.bits()["model"],
        "accounts": {**through.accounts(), "rng": ""},
    }


def one_sees(rank: int) -> dict[str, Any]:
    """A NaN that rank 2 alone is shown; then one that it only reports."""
    guard = Guard(Policy())
    value = float("nan") if rank == 2 else 2.0
    shown = guard.decide(step=1, loss_sum=torch.tensor(value), num_tokens=1, grad_norm=1.0)
    told = guard.decide(step=2, loss_sum=2.0, num_tokens=1, saw_nonfinite=torch.tensor(rank == 1))
    return {"told": [(one.action, one.kind, one.rank, one.nonfinite_rank) for one in (shown, told)]}


def rolled(rank: int) -> dict[str, Any]:
    """A rollback: rank 0 finds the generation, and every rank leaves the batches of all ranks out."""
    asked: list[int] = []

    def newest(step: int) -> str:
        asked.append(step)
        return f"seen-by-{rank}"

    guard = Guard(Policy(nonfinite="rollback"), known_good=newest)
    for step in (1, 2):
        guard.decide(step=step, loss_sum=2.0, num_tokens=1, ids=[f"d{rank}-{step}"])
    bad = guard.decide(
        step=3,
        loss_sum=float("inf") if rank == 1 else 2.0,
        num_tokens=1,
        ids=[f"d{rank}-3", "shared"],
    )
    return {"told": (bad.action, bad.generation, bad.skip_ids, guard.skip_ids), "asked": asked}


def failing(rank: int) -> str:
    """Rank 0's search for a generation fails."""

    def newest(step: int) -> str:
        raise OSError("disk gone")

    guard = Guard(Policy(nonfinite="rollback"), known_good=newest)
    try:
        guard.decide(step=1, loss_sum=float("nan"), num_tokens=1)
    except (OSError, AgreementError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def parted(rank: int) -> list[str]:
    """Ranks at different steps; ranks with different counters."""
    words = []
    for vote in (
        Vote(step=7 if rank == 1 else 6, code=0, saw_nonfinite=False, digest=1),
        Vote(step=8, code=0, saw_nonfinite=False, digest=rank // 2),
    ):
        try:
            Ballot().agree(vote)
        except AgreementError as error:
            words.append(str(error))
    return words


def late(rank: int) -> str:
    """Rank 2 comes only when the others have given up."""
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    if rank == 2:
        store.wait(["gave-up-0", "gave-up-1"])
    try:
        Ballot(timeout_s=2.5).agree(Vote(step=5, code=0, saw_nonfinite=False, digest=1))
    except AgreementError as error:
        store.set(f"gave-up-{rank}", "")
        return str(error)
    return "answered"


def stopped(rank: int) -> None:
    """The same verdict three times, seen by rank 1 alone: no rank goes on."""
    guard = Guard(Policy(max_repeats=3))
    with exit_with_code():
        for step in range(1, 10):
            guard.decide(
                step=step, loss_sum=float("nan") if rank == 1 and step % 2 else 2.0, num_tokens=1
            )


CASES = (resumed, one_sees, rolled, failing, parted, late)
