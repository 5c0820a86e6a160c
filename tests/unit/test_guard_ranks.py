"""Three real gloo ranks under the guard.

One vote a step, whatever one of them sees, and no wait without an end.
"""

from __future__ import annotations

from typing import Any

import guard_loop
import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ranks(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[list[dict[str, Any]], list[int | None], list[str]]:
    return guard_loop.start(tmp_path_factory.mktemp("ranks"))


def test_resumed_ranks_decide_and_end_as_if_they_had_never_stopped(ranks: Any) -> None:
    told = [rank["resumed"] for rank in ranks[0]]
    for rank in told:
        assert rank["resumed"] == rank["told"]
        assert rank["same"]
        assert (
            rank["kept"] == [True] * 3
        )  # 75, 80 and 84; 9 and 83 are overflows, which are the scaler's business
    assert told[0]["told"] == told[1]["told"] == told[2]["told"]
    assert told[0]["model"] == told[1]["model"] == told[2]["model"]
    assert told[0]["accounts"] == {"step": 90, "cursor": 90, "tokens": 90 * 24, "rng": ""}
    acted = [
        (step, action, kind) for step, action, kind, _, _ in told[0]["told"] if action != "none"
    ]
    assert acted == [(75, "skip", "nonfinite"), (80, "skip", "outlier"), (84, "skip", "nonfinite")]


def test_what_one_rank_sees_every_rank_skips_and_the_rank_is_named(ranks: Any) -> None:
    for rank in ranks[0]:
        assert rank["one_sees"]["told"] == [
            ("skip", "nonfinite", 2, 2),
            ("skip", "nonfinite", 1, 1),
        ]


def test_a_rollback_is_one_generation_and_leaves_out_the_batches_of_all_ranks(ranks: Any) -> None:
    ids = ("d0-3", "shared", "d1-3", "d2-3")
    for rank in ranks[0]:
        assert rank["rolled"]["told"] == ("rollback", "seen-by-0", ids, ids)
    assert [rank["rolled"]["asked"] for rank in ranks[0]] == [[3], [], []]


def test_a_failure_of_rank_0_in_the_rollback_reaches_the_others_instead_of_hanging_them(
    ranks: Any,
) -> None:
    told = [rank["failing"] for rank in ranks[0]]
    assert told[0] == "OSError: disk gone"
    assert told[1:] == ["AgreementError: rank 0 failed for all: OSError: disk gone"] * 2


def test_ranks_that_have_parted_are_told_so(ranks: Any) -> None:
    assert [rank["parted"][0] for rank in ranks[0]] == [
        f"ranks vote on different steps, 6 to 7; this one on {7 if rank == 1 else 6}"
        for rank in range(3)
    ]
    assert {rank["parted"][1] for rank in ranks[0]} == {
        "step 8: the guard's counters differ between ranks"
    }


def test_a_rank_that_does_not_answer_in_time_is_named(ranks: Any) -> None:
    told = [rank["late"] for rank in ranks[0]]
    assert told[:2] == ["step 5: no answer to the guard's vote within 2.5 s from rank 2"] * 2


def test_a_stop_ends_every_rank_with_its_own_exit_code_and_one_sentence(ranks: Any) -> None:
    _, exit_codes, words = ranks
    assert exit_codes == [10, 10, 10]
    sentence = "step 5: nonfinite, seen by rank 1, number 3 without progress: stop"
    assert words == [f"{sentence}\n\nhint: spiketriage triage\n"] * 3
