"""Says whether boxes tile a larger box exactly: no hole, no overlap, nothing outside.

This module never paints cells: its cost is nearly linear in the number of boxes, however large
they are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import chain, product

Corner = tuple[int, ...]
# A device mesh cuts along two or three axes, which makes four or eight corners a box.
_MAX_CORNERS = 1 << 22


def flaw(shape: Corner, offsets: Sequence[Corner], sizes: Sequence[Corner]) -> str:
    """What is wrong with a tiling of `shape` by the boxes at `offsets`, empty if nothing is.

    Boxes without an element are left out: a rank that got nothing writes one. Numbers must not be
    negative.
    """
    if len(offsets) == 1 and sizes[0] == shape and not any(offsets[0]):
        return ""
    rank = len(shape)
    if any(len(corner) != rank for corner in chain(offsets, sizes)):
        return f"a chunk does not have {rank} dimensions"
    if 0 in shape:
        return ""
    boxes = [(at, size) for at, size in zip(offsets, sizes, strict=True) if 0 not in size]
    cut = _cut_axes(shape, boxes)
    if not cut and len(boxes) == 1:
        return ""
    if not cut:
        return _volume_flaw(shape, boxes)
    if len(cut) == 1:
        return _flaw_along(cut[0], shape[cut[0]], boxes)
    if len(boxes) << len(cut) > _MAX_CORNERS:
        return f"{len(boxes)} chunks cut along {len(cut)} axes are more than can be checked"
    if _corners_cancel(shape, cut, boxes):
        return ""
    return _volume_flaw(shape, boxes)


def _cut_axes(shape: Corner, boxes: Sequence[tuple[Corner, Corner]]) -> list[int]:
    """The axes along which some box is not as long as the whole."""
    if not boxes:
        return []
    cut = []
    for axis, length in enumerate(shape):
        if any(at[axis] or size[axis] != length for at, size in boxes):
            cut.append(axis)
    return cut


def _flaw_along(axis: int, length: int, boxes: Sequence[tuple[Corner, Corner]]) -> str:
    """What is wrong with boxes that are cut along one axis only."""
    reached = 0
    for start, size in sorted((at[axis], size[axis]) for at, size in boxes):
        if start != reached:
            what = "no chunk holds" if start > reached else "two chunks hold"
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
    for weight, (at, size) in chain(((1, box) for box in boxes), [(-1, whole)]):
        ends = [(at[axis], at[axis] + size[axis]) for axis in cut]
        for corner, sign in zip(product(*ends), signs, strict=True):
            corners[corner] += sign * weight
    return not any(corners.values())


def _volume_flaw(shape: Corner, boxes: Sequence[tuple[Corner, Corner]]) -> str:
    held, whole = sum(math.prod(size) for _, size in boxes), math.prod(shape)
    if held == whole:
        return "chunks overlap and leave a hole as large"
    return f"the chunks hold {held} elements of {whole}"
