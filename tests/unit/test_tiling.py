"""Whether boxes tile a box, against painting every cell."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spiketriage.readers.checkpoints.building.tiling import flaw

Box = tuple[tuple[int, ...], tuple[int, ...]]


def painted(shape: tuple[int, ...], boxes: list[Box]) -> bool:
    """The slow truth: every cell once, and nothing outside."""
    canvas = np.zeros(tuple(2 * size + 2 for size in shape), dtype=np.int64)
    for at, size in boxes:
        canvas[tuple(slice(a, a + s) for a, s in zip(at, size, strict=True))] += 1
    inside = canvas[tuple(slice(0, size) for size in shape)]
    return bool((inside == 1).all() and canvas.sum() == inside.size)


def said(shape: tuple[int, ...], boxes: list[Box]) -> str:
    return flaw(shape, [box[0] for box in boxes], [box[1] for box in boxes])


@st.composite
def tilings(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Box]]:
    """A box that was cut again and again, anywhere, along any axis."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=0, max_size=3)))
    boxes: list[Box] = [((0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, 5)) if shape else 0):
        at, size = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        axis = draw(st.integers(0, len(shape) - 1))
        cut = draw(st.integers(0, size[axis]))
        first, second = list(size), list(size)
        first[axis], second[axis] = cut, size[axis] - cut
        moved = [*at]
        moved[axis] += cut
        boxes += [(at, tuple(first)), (tuple(moved), tuple(second))]
    return shape, draw(st.permutations(boxes))


@given(tilings())
def test_a_box_cut_anyhow_is_tiled_by_its_pieces(tiling: tuple[tuple[int, ...], list[Box]]) -> None:
    assert said(*tiling) == ""


@settings(max_examples=150)
@given(tilings(), st.data())
def test_what_painting_refuses_is_refused(
    tiling: tuple[tuple[int, ...], list[Box]], data: st.DataObject
) -> None:
    shape, boxes = tiling
    number = data.draw(st.integers(0, len(boxes) - 1))
    at, size = boxes[number]
    moved = tuple(data.draw(st.integers(0, 5)) for _ in at)
    change = data.draw(st.sampled_from(["drop", "twice", "move", "swap sizes"]))
    if change == "drop":
        boxes = boxes[:number] + boxes[number + 1 :]
    elif change == "twice":
        boxes = [*boxes, (at, size)]
    elif change == "move":
        boxes = [
            *boxes[:number],
            (tuple(min(a, s) for a, s in zip(moved, shape, strict=True)), size),
            *boxes[number + 1 :],
        ]
    else:
        boxes = [*boxes[:number], (at, size[::-1]), *boxes[number + 1 :]]
    assert (said(shape, boxes) == "") == painted(shape, boxes)


@pytest.mark.parametrize(
    ("boxes", "words"),
    [
        ([((0, 0), (2, 4)), ((3, 0), (1, 4))], "no chunk holds 2:3 of axis 0"),
        ([((0, 0), (3, 4)), ((2, 0), (2, 4))], "two chunks hold 2:3 of axis 0"),
        ([((0, 0), (3, 4))], "no chunk holds 3:4 of axis 0"),
        ([((0, 0), (3, 4)), ((3, 0), (3, 4))], "a chunk ends at 6 of axis 0, which ends at 4"),
        (
            [((0, 0), (2, 2)), ((0, 2), (2, 2)), ((2, 0), (2, 2))],
            "the chunks hold 12 elements of 16",
        ),
        (
            [((0, 0), (2, 2)), ((0, 2), (2, 2)), ((2, 0), (2, 2)), ((2, 0), (2, 2))],
            "overlap and leave a hole",
        ),
        ([((0,), (4,))], "does not have 2 dimensions"),
        ([], "the chunks hold 0 elements of 16"),
    ],
)
def test_the_flaw_is_named(boxes: list[Box], words: str) -> None:
    assert words in said((4, 4), boxes)


def test_huge_numbers_cost_nothing() -> None:
    side = 1 << 60
    assert said((side, side), [((0, 0), (side, 1)), ((0, 1), (side, side - 1))]) == ""
    assert said((side, side), [((0, 0), (side, 1)), ((0, 2), (side, side - 2))]) != ""


def test_an_empty_tensor_needs_no_chunk() -> None:
    assert said((0, 8), []) == ""
    assert said((0, 8), [((0, 0), (0, 8)), ((0, 0), (0, 8))]) == ""
