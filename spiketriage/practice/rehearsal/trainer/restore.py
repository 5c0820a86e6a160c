"""The trainer's own way back from a generation: it hands over what the files hold.

It trusts the files; verification is the business of
`spiketriage.train.generations.generation.load_verified`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from spiketriage.train.generations.generation import read_state
from spiketriage.train.generations.rank_state import RankState


def restore(generation: Path) -> RankState:
    """Parameters, optimizer, scheduler, RNG and cursor of this rank; collective."""
    state = read_state(generation)
    scheduler = dict(state.scheduler)
    return replace(state, scheduler=scheduler)
