"""The file of a rank in a generation: scheduler, scaler, guard, generators and data cursor.

This module never guesses: where another number of ranks cannot go on, it says why.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from spiketriage import durable
from spiketriage.errors import EvidenceError
from spiketriage.train.generations.rank_state import RankState, canonical
from spiketriage.train.generations.together import place
from spiketriage.train.guarding.state import of_all_ranks
from spiketriage.wire import generation as wire

FIELDS = ("scheduler", "scaler", "guard", "rng", "cursor", "is_cursor_global", "num_tokens")
_SHARED = ("scheduler", "scaler", "num_tokens", "cursor")
_HINT = (
    "load with the number of ranks that saved, or save one cursor for all ranks with "
    "is_cursor_global=True"
)


def write(folder: Path, state: RankState, rank: int) -> Path:
    """Write what `state` holds beside tensors; returns the file."""
    path = folder / wire.rank_file(rank)
    durable.write(path, canonical({name: getattr(state, name) for name in FIELDS}))
    return path


def read(folder: Path) -> dict[str, Any]:
    """What this rank goes on with beside tensors, by the names of `RankState`.

    Raises:
        EvidenceError: a file is missing or unreadable, or this number of ranks cannot go on from
        what others saved.
    """
    here = place()
    saved = sorted(folder.glob("rank-*.json"))
    if len(saved) == here.world_size:
        return _read_rank(folder / wire.rank_file(here.rank))
    if not saved:
        raise EvidenceError(f"{folder}: holds no file of a rank")
    return _reshared(folder, [_read_rank(path) for path in saved], here.world_size)


def _read_rank(path: Path) -> dict[str, Any]:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return {name: stored[name] for name in FIELDS}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EvidenceError(f"{path}: cannot be read: {error}") from error


def _reshared(folder: Path, saved: list[dict[str, Any]], world_size: int) -> dict[str, Any]:
    """What every rank of another number of ranks goes on with.

    Raises:
        EvidenceError: the ranks that saved did not share one state, or one position in the data.
    """
    ranks = f"{folder}: saved by {len(saved)} ranks, loaded by {world_size}"
    for name in _SHARED:
        if any(rank[name] != saved[0][name] for rank in saved):
            raise EvidenceError(f"{ranks}: {name} differs between the ranks that saved", hint=_HINT)
    if not saved[0]["is_cursor_global"]:
        raise EvidenceError(
            f"{ranks}: the data cursor is each rank's own, so no other number of ranks can "
            "go on from it",
            hint=_HINT,
        )
    return {**saved[0], "rng": {}, "guard": of_all_ranks([rank["guard"] for rank in saved])}
