"""Says whether boxes tile a larger box exactly.

No hole, no overlap, nothing outside, in near linear time.

This module never paints cells: what it costs depends on the number of boxes, never on how large
they are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import product

Corner = tuple[int, ...]
_MAX_CORNERS = (
    1 << 22
)  # a device mesh cuts along two or three axes, which makes four or eight corners a box


def flaw(shape: Corner, offsets: Sequence[Corner], sizes: Sequence[Corner]) -> str:
    """What is wrong with a tiling of `shape` by the boxes at `offsets`, empty if nothing is.

    Boxes without an element are left out: a rank that got nothing writes one. Numbers must not be
    negative.
    """
    if len(offsets) == 1 and sizes[0] == shape and not any(offsets[0]):
        return ""
    rank = len(shape)
    if any(len(one) != rank for one in offsets) or any(len(one) != rank for one in sizes):
        return f"a chunk does not have {rank} dimensions"
    if 0 in shape:
        return ""
    boxes = [(at, size) for at, size in zip(offsets, sizes, strict=True) if 0 not in size]
    cut = _cut_axes(shape, boxes)
    if not cut:
        return "" if len(boxes) == 1 else _volume_flaw(shape, boxes)
    if len(cut) == 1:
        return _flaw_along(cut[0], shape[cut[0]], boxes)
    if len(boxes) << len(cut) > _MAX_CORNERS:
        return f"{len(boxes)} chunks cut along {len(cut)} axes are more than can be checked"
    return "" if _corners_cancel(shape, cut, boxes) else _volume_flaw(shape, boxes)


def _cut_axes(shape: Corner, boxes: Sequence[tuple[Corner, Corner]]) -> list[int]:
    """The axes along which some box is not as long as the whole."""
    if not boxes:
        return []
    at = list(zip(*(box[0] for box in boxes), strict=True))
    size = list(zip(*(box[1] for box in boxes), strict=True))
    return [axis for axis in range(len(shape)) if set(size[axis]) != {shape[axis]} or any(at[axis])]


def _flaw_along(axis: int, length: int, boxes: Sequence[tuple[Corner, Corner]]) -> str:
    reached = 0
    for start, size in sorted((at[axis], size[axis]) for at, size in boxes):
        if start != reached:
            if start > reached:
                what = "no chunk holds"
            else:
                what = "two chunks hold"
            return f"{what} {min(start, reached)}:{max(start, reached)} of axis {axis}"
        reached = start + size
    if reached < length:
        return f"no chunk holds {reached}:{length} of axis {axis}"
    if reached > length:
        return f"a chunk ends at {reached} of axis {axis}, which ends at {length}"
    return ""


def _corners_cancel(
    shape: Corner, cut: Sequence[int], boxes: Sequence[tuple[Corner, Corner]]
) -> bool:
    # The mixed derivative of a box's indicator is its corners with alternating signs, and it
    # determines the indicator; so boxes tile the whole exactly when their signed corners add up to
    # those of the whole.
    corners: Counter[Corner] = Counter()
    signs = [1 - 2 * (sum(ends) % 2) for ends in product((0, 1), repeat=len(cut))]
    whole = ((0,) * len(shape), shape)
    for (at, size), weight in (*((box, 1) for box in boxes), (whole, -1)):
        for corner, sign in zip(
            product(*((at[a], at[a] + size[a]) for a in cut)), signs, strict=True
        ):
            corners[corner] += sign * weight
    return not any(corners.values())


def _volume_flaw(shape: Corner, boxes: Sequence[tuple[Corner, Corner]]) -> str:
    held, whole = sum(math.prod(size) for _, size in boxes), math.prod(shape)
    if held == whole:
        return "chunks overlap and leave a hole as large"
    return f"the chunks hold {held} elements of {whole}"
