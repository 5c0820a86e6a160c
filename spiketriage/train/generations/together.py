"""Work that succeeds or fails on every rank alike, so that none waits for a dead peer.

It never hides a rank's failure and never decides what to do about one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from spiketriage.errors import EvidenceError
from spiketriage.train.guarding.agree import Ballot

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """This process among the ranks of a group; one of one where there is no process group."""

    rank: int
    world_size: int


def place(group: dist.ProcessGroup | None = None) -> Place:
    """Where this process stands."""
    if not dist.is_initialized():
        return Place(rank=0, world_size=1)
    return Place(rank=dist.get_rank(group), world_size=dist.get_world_size(group))


def together(work: Callable[[], Made], *, group: dist.ProcessGroup | None = None) -> Made:
    """What `work` returned on this rank, once it has succeeded on every rank; collective.

    Raises:
        EvidenceError: it failed on some rank; every rank raises, and the others name the first one
        that failed.
    """
    made: list[Made] = []
    error: EvidenceError | None = None
    try:
        made.append(work())
    except EvidenceError as failure:
        error = failure
    except (OSError, CheckpointException) as failure:
        error = EvidenceError(reason(failure))
    own_message: str | None = None
    if error is not None:
        own_message = error.message
    messages = Ballot(group=group).gather(own_message)
    failed = [rank for rank, message in enumerate(messages) if message is not None]
    if error is not None and failed[0] == place(group).rank:
        raise error
    if failed:
        raise EvidenceError(f"rank {failed[0]}: {messages[failed[0]]}") from error
    return made[0]


def gathered(work: Callable[[], Made], *, group: dist.ProcessGroup | None = None) -> list[Made]:
    """What `work` returned on every rank, in order; collective, for small picklable values.

    Raises:
        EvidenceError: as `together`.
    """
    return Ballot(group=group).gather(together(work, group=group))


def reason(error: BaseException) -> str:
    """The sentence in an error; of torch's wrapper around the ranks' errors, that of the first."""
    if isinstance(error, CheckpointException) and error.failures:
        rank, (inner, _) = min(error.failures.items())
        return f"rank {rank}: {reason(inner)}"
    if isinstance(error, OSError) and error.strerror:
        if error.filename:
            return f"{error.filename}: {error.strerror}"
        return error.strerror
    return f"{type(error).__name__}: {error}"
