"""Accelerate: two ranks under DDP replayed bit for bit, and what a loop may not do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from adapted import child, rotten_steps, rows_with_rot, script

pytest.importorskip("accelerate")

ROTTEN = 13  # of 80 rows; 5 micro-batches a rank and epoch, so that the third step of an epoch has one


@pytest.mark.slow
def test_two_ranks_agree_on_every_skip_and_are_replayed_bit_for_bit(tmp_path: Path) -> None:
    run = rows_with_rot(tmp_path / "run", num_rows=80, rotten=ROTTEN)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = child(*launcher, str(script("accelerate")), str(run.folder))
    assert "exitcode  : 10" in done.stderr
    ranks = [{one.step: one for one in segment.steps} for segment in run.segments()]
    assert [rotten_steps(steps, ROTTEN) for steps in ranks] == [[6], [3, 8]] == expected_steps()
    for steps in ranks:
        assert list(steps) == list(range(1, 9))
        assert [step for step, one in steps.items() if one.metrics["guard/skipped"]] == [3, 6, 8]
    assert done.stderr.count("step 8: nonfinite, seen by rank 0, number 3 without progress: stop") == 2  # by its sum
    assert run.desk("freeze")["ok"]
    replayed = run.desk("replay", "--last", "8")
    assert (replayed["exit"], replayed["verdict"]) == (0, "agrees"), replayed
    assert replayed["data"]["steps_executed"] == 6  # 3 to 8, over two ends of epochs


def expected_steps() -> list[list[int]]:
    """Steps in which each rank meets the rotten row: micro-batches of a shuffled epoch in turn, two a step."""
    found: list[list[int]] = [[], []]
    for epoch in range(3):
        order = torch.randperm(80, generator=torch.Generator().manual_seed(epoch)).tolist()
        number, rank = divmod(order.index(ROTTEN) // 8, 2)
        if (step := 3 * epoch + number // 2 + 1) <= 8:
            found[rank].append(step)
    return found
