"""The trainer's own way back from a generation: read this rank's files and hand over what they hold.

It trusts the files; verification is the business of `spiketriage.train.checkpoint.load_verified`.
"""

from __future__ import annotations

from pathlib import Path

from spiketriage.train.checkpoint import RankState, read_rank


def restore(generation: Path, rank: int) -> RankState:
    """Parameters, optimizer, scheduler, RNG and cursor of this rank."""
    state = read_rank(generation, rank)
    scheduler = dict(state.scheduler)
    return RankState(
        params=state.params,
        optimizer=state.optimizer,
        scheduler=scheduler,
        rng=state.rng,
        cursor=state.cursor,
        num_tokens=state.num_tokens,
    )
