"""Two chains side by side against a reference that is written as plainly as possible."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spiketriage.diagnosis.compare import (
    Chain,
    by_step,
    compare,
    compare_loads,
    relative,
    relative_noise,
)
from spiketriage.nouns.telemetry import Link, LoadRecord, StepRecord
from spiketriage.wire.chain import STAGES, STATE_FIELDS

LINKS = [Link(stage, key) for stage in STAGES[1:] for key in ("a", "b")]


def record(rank: int, step: int, digests: dict[Link, bytes], **metrics: float) -> StepRecord:
    return StepRecord(
        attempt=0,
        rank=rank,
        step=step,
        metrics={name.replace("_", "/"): value for name, value in metrics.items()},
        digests=digests,
        nonfinite=(),
        ids=None,
        content={},
        series={},
        wall_time_s=0.0,
    )


def load(rank: int, generation: str, fields: dict[str, str]) -> LoadRecord:
    return LoadRecord(
        attempt=0,
        rank=rank,
        step=20,
        generation=generation,
        fields=fields,
        tensors={},
        wall_time_s=0.0,
    )


@st.composite
def pairs(draw: st.DrawFn) -> tuple[list[StepRecord], list[StepRecord]]:
    """Two chains that agree but for a few links, records and ranks."""
    left, right = [], []
    for step in range(1, draw(st.integers(1, 4)) + 1):
        for rank in range(draw(st.integers(1, 3))):
            links = draw(st.lists(st.sampled_from(LINKS), unique=True, max_size=6))
            links.sort(key=LINKS.index)
            ours = dict.fromkeys(links, b"same")
            theirs = {
                link: draw(st.sampled_from([b"same"] * 5 + [b"other", None])) for link in links
            }
            left.append(record(rank, step, ours))
            if draw(st.integers(0, 9)):
                right.append(
                    record(
                        rank,
                        step,
                        {link: value for link, value in theirs.items() if value is not None},
                    )
                )
    return left, right


def plainly(left: list[StepRecord], right: list[StepRecord]) -> list[tuple[int, int, int, str]]:
    """Every differing link as (step, place of the stage, rank, key)."""
    return sorted(
        (ours.step, STAGES.index(link.stage), ours.rank, link.key)
        for ours in left
        for theirs in right
        for link in ours.digests
        if (ours.step, ours.rank) == (theirs.step, theirs.rank)
        and link in theirs.digests
        and ours.digests[link] != theirs.digests[link]
    )


@settings(max_examples=100, deadline=None)
@given(pair=pairs())
def test_the_first_difference_is_the_first_by_step_then_stage(
    pair: tuple[list[StepRecord], list[StepRecord]],
) -> None:
    left, right = pair
    found, expected = compare(by_step(left), by_step(right)), plainly(left, right)
    if not expected:
        assert found.where is None
        assert found.prefix_steps == found.num_steps
        shared = {(one.step, one.rank): one for one in right}
        links = [link for one in left for link in one.digests if (one.step, one.rank) in shared]
        assert found.num_links <= len(links)
        return
    step, place, _, _ = expected[0]
    there = [item for item in expected if item[:2] == (step, place)]
    ranks = sorted({rank for _, _, rank, _ in there})
    assert found.where is not None
    assert (found.where.step, found.where.stage) == (step, STAGES[place])
    assert found.ranks == tuple(ranks)
    assert found.where.rank == (ranks[0] if len(ranks) == 1 else None)
    assert sorted(found.keys) == [key for _, _, rank, key in there if rank == ranks[0]]
    assert found.where.key == found.keys[0]
    both = {one.step for one in left} & {one.step for one in right}
    assert found.prefix_steps == len([one for one in both if one < step])


@settings(max_examples=50, deadline=None)
@given(pair=pairs())
def test_a_chain_equals_itself_and_the_order_of_two_does_not_matter(
    pair: tuple[list[StepRecord], list[StepRecord]],
) -> None:
    left, right = by_step(pair[0]), by_step(pair[1])
    assert compare(left, left).where is None
    there, back = compare(left, right), compare(right, left)
    assert (there.where is None) == (back.where is None)
    if there.where and back.where:
        assert (there.where.step, there.where.stage) == (back.where.step, back.where.stage)
        assert (there.num_links, there.ranks) == (back.num_links, back.ranks)


def test_nothing_in_common_is_no_agreement_on_anything() -> None:
    left: Chain = by_step([record(0, 1, {LINKS[0]: b"x"})])
    right: Chain = by_step([record(0, 2, {LINKS[0]: b"y"})])
    assert (compare(left, right).num_links, compare(left, right).where) == (0, None)


@settings(max_examples=100, deadline=None)
@given(
    fields=st.lists(
        st.tuples(*[st.sampled_from("xxxy") for _ in STATE_FIELDS]), min_size=2, max_size=2
    ),
    ranks=st.integers(1, 3),
)
def test_the_first_state_field_that_differs_is_named(
    fields: list[tuple[str, ...]], ranks: int
) -> None:
    ours, theirs = (dict(zip(STATE_FIELDS, values, strict=True)) for values in fields)
    left = [load(rank, "step-000020", ours) for rank in range(ranks)]
    right = [load(rank, "step-000020", theirs if rank == 0 else ours) for rank in range(ranks)]
    where = compare_loads(left, right)
    expected = next((name for name in STATE_FIELDS if ours[name] != theirs[name]), None)
    assert (where.key if where else None) == expected
    if where:
        assert (where.step, where.stage, where.rank) == (21, "restored", 0)
    assert compare_loads(left, [load(0, "step-000040", theirs)]) is None


def test_a_field_that_one_load_does_not_state_is_not_compared() -> None:
    whole = dict.fromkeys(STATE_FIELDS, "1")
    part = {name: value for name, value in whole.items() if name != "guard"}
    assert compare_loads([load(0, "step-000020", part)], [load(0, "step-000020", whole)]) is None
    where = compare_loads(
        [load(0, "step-000020", part)], [load(0, "step-000020", {**whole, "cursor": "2"})]
    )
    assert where is not None
    assert where.key == "cursor"


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (math.nan, math.nan, 0.0),
        (math.inf, math.inf, 0.0),
        (-math.inf, -math.inf, 0.0),
        (math.inf, -math.inf, math.inf),
        (math.nan, 1.0, math.inf),
        (1.0, math.inf, math.inf),
        (0.0, 0.0, 0.0),
        (0.0, -0.0, 0.0),
        (1.0, 2.0, 0.5),
        (-2.0, 2.0, 2.0),
    ],
)
def test_relative_difference(left: float, right: float, expected: float) -> None:
    assert relative(left, right) == expected
    assert relative(right, left) == expected


@given(left=st.floats(allow_nan=True), right=st.floats(allow_nan=True))
def test_relative_difference_is_symmetric_never_nan_and_never_negative(
    left: float, right: float
) -> None:
    assert relative(left, right) == relative(right, left)
    assert relative(left, right) >= 0  # a NaN would fail here too
    assert relative(left, left) == 0


def test_noise_is_the_worst_of_the_scalars() -> None:
    left = by_step(
        [record(0, 1, {}, loss_mean=1.0, grad_norm=1.0), record(1, 1, {}, loss_mean=1.0)]
    )
    right = by_step(
        [record(0, 1, {}, loss_mean=1.0, grad_norm=0.9), record(1, 1, {}, loss_mean=0.5)]
    )
    assert relative_noise(left, right) == 0.5
    assert relative_noise(left, left) == 0.0
