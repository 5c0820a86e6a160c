"""Ranks of a test: processes of a fork server that imports torch once, with an end to every wait.

What a rank does and what it leaves behind is the caller's.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

LIMIT_S = 120


def run_ranks(
    work: Callable[..., None], num_ranks: int, *given: Any, preload: tuple[str, ...] = ()
) -> list[int | None]:
    """Call `work(rank, *given)` in as many processes.

    Their exit codes, a negative one for what had to be killed.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", *preload])
    ranks = [context.Process(target=work, args=(rank, *given)) for rank in range(num_ranks)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(LIMIT_S)
        if rank.is_alive():
            rank.kill()
            rank.join()
    return [rank.exitcode for rank in ranks]
