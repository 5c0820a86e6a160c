"""What the guard remembers beside the detector: accounts, patience and recent batches, as JSON.

This module never judges a value and never talks to another rank; everything that outcomes rest on
came from a vote.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from spiketriage import digests
from spiketriage.detect.detector import Alarm, Row
from spiketriage.train.guarding.policy import Action, Kind, Policy

RECENT_STEPS = 16  # whose batches are remembered; a lasting shift is known ten rows after it began


@dataclass(slots=True, kw_only=True)
class Accounts:
    """Exact counts of the state in memory: a rollback takes them back with it.

    `num_steps` = `num_taken` + `num_skipped`: a scheduler that is stepped with the optimizer stands
    at `num_taken`. The tokens of skipped steps are consumed too: the cursor has passed them, and
    the generators drew for them.
    """

    num_steps: int = 0
    num_taken: int = 0
    num_skipped: int = 0
    num_tokens: int = 0
    num_tokens_skipped: int = 0

    def add(self, *, num_tokens: int, is_skip: bool) -> None:
        """Count one step."""
        self.num_steps += 1
        self.num_tokens += num_tokens
        if is_skip:
            self.num_skipped += 1
            self.num_tokens_skipped += num_tokens
        else:
            self.num_taken += 1


@dataclass(slots=True, kw_only=True)
class Patience:
    """How often each kind of verdict came without progress; a rollback does not take this back."""

    repeats: dict[str, int] = field(default_factory=dict)
    furthest: int = -1
    num_clean: int = 0
    num_rollbacks: int = 0

    def passed(self, step: int, policy: Policy) -> None:
        """A step was taken without a verdict that acts."""
        if step <= self.furthest:
            return
        self.num_clean += 1
        if self.num_clean >= policy.progress_steps:
            self.repeats = {}

    def failed(self, step: int, kind: Kind, action: Action, policy: Policy) -> Action:
        """What is done for a verdict that asks for `action`: more, once it came too often."""
        self.furthest, self.num_clean = max(self.furthest, step), 0
        self.repeats[kind] = self.repeats.get(kind, 0) + 1
        if self.repeats[kind] >= policy.max_repeats:
            return "stop"
        allowed = policy.skips_before_rollback
        if action == "skip" and allowed is not None and self.repeats[kind] > allowed:
            return "rollback"
        return action


class Recent:
    """The batches of the last 16 steps, as the caller names them."""

    def __init__(self, batches: Sequence[Sequence[Any]] = ()) -> None:
        self._steps: deque[tuple[int, list[Any]]] = deque(maxlen=RECENT_STEPS)
        for step, ids in batches:
            self.add(step, ids)

    def add(self, step: int, ids: Sequence[Any]) -> None:
        """Remember the batch of a step."""
        self._steps.append((step, list(ids)))

    def since(self, step: int) -> list[Any]:
        """Ids of every remembered step from `step` on, in the order in which they were read."""
        names: list[Any] = []
        for at, ids in self._steps:
            if at >= step:
                names.extend(ids)
        return names

    def state(self) -> list[list[Any]]:
        """Plain JSON."""
        return [[step, ids] for step, ids in self._steps]


def of_all_ranks(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One state for another number of ranks: the first rank's, with the recent batches of all."""
    batches: dict[int, list[Any]] = {}
    for state in states:
        for step, ids in state.get("recent", ()):
            names = batches.setdefault(step, [])
            names.extend(name for name in ids if name not in names)
    if not batches:
        return dict(states[0])
    return {**states[0], "recent": [[step, names] for step, names in sorted(batches.items())]}


def vote_digest(accounts: Accounts, patience: Patience) -> int:
    """A number below 2^62 of all that a vote's outcome rests on: if it differs, ranks have parted.

    Tokens are left out: a caller may count its own.
    """
    steps = [accounts.num_steps, accounts.num_taken, accounts.num_skipped]
    text = json.dumps([steps, asdict(patience)], sort_keys=True)
    return int(digests.of_bytes(text.encode())[:15], 16)


def row_to_json(row: Row | None) -> dict[str, Any] | None:
    """A row with its nonfinites as strings."""
    if row is None:
        return None
    return {name: _to_json(value) for name, value in asdict(row).items()}


def row_from_json(stored: Mapping[str, Any] | None) -> Row | None:
    """The row that `row_to_json` wrote."""
    if stored is None:
        return None
    return Row(**{name: _from_json(value) for name, value in stored.items()})


def alarm_to_json(alarm: Alarm) -> dict[str, Any]:
    """An alarm with its nonfinites as strings."""
    return {name: _to_json(value) for name, value in asdict(alarm).items()}


def alarm_from_json(stored: Mapping[str, Any]) -> Alarm:
    """The alarm that `alarm_to_json` wrote."""
    fields = dict(stored)
    for name in fields.keys() - {"signal", "sentence", "trigger"}:
        fields[name] = _from_json(fields[name])
    return Alarm(**fields)


def _to_json(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value


def _from_json(value: Any) -> Any:
    if isinstance(value, str):
        return float(value)
    return value
