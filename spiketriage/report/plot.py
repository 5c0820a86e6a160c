"""One curve per step as SVG without scripts, with marked steps and a rail for what is not finite.

Equal data give equal bytes; it never leaves a nonfinite value as a mere gap.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from statistics import median

from spiketriage.report import words
from spiketriage.report.axis import Axis, step_axis, value_axis
from spiketriage.report.decimate import Sample, runs, thin
from spiketriage.report.model import Figure

WIDTH, LEFT, RIGHT = 960, 76, 20
LABEL_ROW, RAIL, BODY, FOOT = 17, 22, 230, 62  # heights from top to bottom, in picture units
RAIL_BIN = 8  # nonfinite marks closer than this many units become one mark that says how many
CHAR_WIDTH = 6.9  # of a label's font, about; labels must not overlap


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One value at one step; a superseded one was recorded again by a later attempt."""

    step: int
    value: float
    superseded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A step to be marked, and how: `suspect`, `onset`, `good` or `restart`."""

    step: int
    kind: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """What to plot: points in step order, marks, and a scale."""

    name: str
    title: str
    unit: str
    points: Sequence[Point]
    marks: Sequence[Mark]
    log: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Label:
    mark: Mark
    x: float
    row: int
    leftward: bool


def draw(curve: Curve) -> Figure:
    """Curve as a figure; there must be at least one point."""
    steps = [point.step for point in curve.points]
    across = step_axis(min(steps), max(steps), LEFT, WIDTH - RIGHT)
    labels = _labels([m for m in curve.marks if across.low <= m.step <= across.high], across)
    top = LABEL_ROW * (1 + max((label.row for label in labels), default=-1)) + 6
    rail_y, body_top = top + RAIL / 2, top + RAIL + 4
    bottom = body_top + BODY
    finite = [point.value for point in curve.points if math.isfinite(point.value)]
    up = value_axis(finite, bottom, body_top, log=curve.log)
    parts = [
        *_frame(curve, across, up, rail_y),
        *_marks(labels, bottom),
        *_names(labels),
        *_curves(curve, across, up),
        *_peak(curve, across, up),
        *_rails(curve, across, rail_y, bottom - 6),
        *_legend(curve, bottom + 50),
    ]
    return Figure(
        name=curve.name,
        title=curve.title,
        description=_describe(curve, finite),
        width=WIDTH,
        height=bottom + FOOT,
        body="\n".join(parts),
    )


def _n(value: float) -> str:
    """Coordinate as text: two decimals at most, no trailing zeros, no negative zero."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    if text == "-0":
        return "0"
    return text


def _frame(curve: Curve, across: Axis, up: Axis, rail_y: float) -> Iterable[str]:
    bottom, top = up.start, up.end
    yield (
        f'<rect class="rail" x="{LEFT}" y="{_n(rail_y - 8)}" width="{WIDTH - LEFT - RIGHT}" '
        'height="16"/>'
    )
    yield f'<text class="tick" x="{LEFT - 8}" y="{_n(rail_y + 4)}" text-anchor="end">NaN / ∞</text>'
    for value in up.ticks(5):
        y = _n(up.at(value))
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
        label = words.number(value)
        yield (
            f'<text class="tick" x="{LEFT - 8}" y="{_n(up.at(value) + 4)}" '
            f'text-anchor="end">{label}</text>'
        )
    for value in across.ticks(8):
        if value != int(value):
            continue
        x = _n(across.at(value))
        yield f'<line class="grid" x1="{x}" x2="{x}" y1="{_n(bottom)}" y2="{_n(bottom + 5)}"/>'
        yield (
            f'<text class="tick step" data-step="{int(value)}" x="{x}" y="{_n(bottom + 19)}" '
            f'text-anchor="middle">{int(value)}</text>'
        )
    yield (
        f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{_n(bottom)}" y2="{_n(bottom)}"/>'
    )
    yield (
        f'<text class="name" x="{WIDTH - RIGHT}" y="{_n(bottom + 50)}" '
        'text-anchor="end">step</text>'
    )
    middle = _n((top + bottom) / 2)
    if curve.log:
        scale = f"{curve.unit}, log scale"
    else:
        scale = curve.unit
    yield (
        f'<text class="name" x="14" y="{middle}" text-anchor="middle" '
        f'transform="rotate(-90 14 {middle})">'
        f"{escape(scale)}</text>"
    )


def _curves(curve: Curve, across: Axis, up: Axis) -> Iterable[str]:
    for superseded, kind in ((True, "superseded"), (False, "production")):
        chosen = [point for point in curve.points if point.superseded is superseded]
        path = _path(chosen, across, up)
        if path:
            yield f'<path class="curve {kind}" d="{path}"/>'


def _path(points: Sequence[Point], across: Axis, up: Axis) -> str:
    steps = [point.step for point in points]
    gaps = [after - before for before, after in pairwise(steps)]
    max_gap = 1
    if gaps:
        max_gap = max(1, int(1.5 * median(gaps)))
    samples = []
    for point in points:
        value = point.value
        if up.log and not value > 0:
            value = math.nan
        samples.append(Sample(step=point.step, x=across.at(point.step), value=value))
    pieces = []
    for stretch in runs(samples, max_gap):
        kept = thin(stretch)
        if len(kept) == 1:  # between holes: a line of no length with round caps is a dot
            kept = [kept[0], kept[0]]
        pieces.append("M" + "L".join(f"{_n(s.x)} {_n(up.at(s.value))}" for s in kept))
    return "".join(pieces)


def _rails(curve: Curve, across: Axis, nonfinite_y: float, low_y: float) -> Iterable[str]:
    """Mark the values that no axis can carry: above what is not finite, below what has no log."""
    lost = [point for point in curve.points if not math.isfinite(point.value)]
    yield from _rail(lost, across, nonfinite_y, "nonfinite")
    if curve.log:
        low = [point for point in curve.points if point.value <= 0]
        yield from _rail(low, across, low_y, "not positive")


def _rail(points: Sequence[Point], across: Axis, y: float, what: str) -> Iterable[str]:
    bins: dict[int, list[Point]] = {}
    for point in points:
        bins.setdefault(int(across.at(point.step) // RAIL_BIN), []).append(point)
    for members in bins.values():
        first, last = members[0], members[-1]
        if len(members) == 1:
            title = f"{words.number(first.value)} at step {first.step}"
        else:
            title = f"{len(members)} {what} values, steps {first.step}–{last.step}"
        x = across.at(first.step)
        place = f'data-step="{first.step}" d="{_cross(x, y)}"'
        yield f'<path class="rail-mark" {place}><title>{title}</title></path>'


def _cross(x: float, y: float) -> str:
    left, right, above, below = _n(x - 4), _n(x + 4), _n(y - 4), _n(y + 4)
    return f"M{left} {above}L{right} {below}M{left} {below}L{right} {above}"


def _labels(marks: Sequence[Mark], across: Axis) -> list[_Label]:
    """Give each mark a row, so that no two labels overlap."""
    taken: list[float] = []  # where the last label of each row ends
    placed = []
    for mark in sorted(marks, key=lambda m: (m.step, m.kind)):
        x, width = across.at(mark.step), CHAR_WIDTH * len(mark.label) + 12
        leftward = x + width > WIDTH - RIGHT
        start, end = x - 3, x + width
        if leftward:
            start, end = x - width, x + 3
        row = 0
        while row < len(taken) and taken[row] > start:
            row += 1
        taken[row : row + 1] = [end]
        placed.append(_Label(mark=mark, x=x, row=row, leftward=leftward))
    return placed


def _marks(labels: Sequence[_Label], bottom: float) -> Iterable[str]:
    """Draw the lines of the marks; curves go over them, so that a spike hides behind none."""
    for label in labels:
        x = _n(label.x)
        span = f'x1="{x}" x2="{x}" y1="{LABEL_ROW * label.row + 4}" y2="{_n(bottom)}"'
        yield f'<line class="mark {escape(label.mark.kind)}" data-step="{label.mark.step}" {span}/>'


def _names(labels: Sequence[_Label]) -> Iterable[str]:
    for label in labels:
        anchor, shift = ("end", -5) if label.leftward else ("start", 5)
        place = f'x="{_n(label.x + shift)}" y="{LABEL_ROW * label.row + 15}" text-anchor="{anchor}"'
        yield f'<text class="label" {place}>{escape(label.mark.label)}</text>'


def _peak(curve: Curve, across: Axis, up: Axis) -> Iterable[str]:
    """Draw a ring around production's value at the suspect step, where that can be drawn."""
    suspects = {mark.step for mark in curve.marks if mark.kind == "suspect"}
    for point in curve.points:
        drawable = math.isfinite(point.value) and (not curve.log or point.value > 0)
        if point.step in suspects and drawable and not point.superseded:
            x, y = _n(across.at(point.step)), _n(up.at(point.value))
            yield f'<circle class="peak" cx="{x}" cy="{y}" r="4.5"/>'


def _legend(curve: Curve, y: float) -> Iterable[str]:
    entries = [("curve production", "production")]
    if any(point.superseded for point in curve.points):
        entries.append(("curve superseded", "superseded by a restart"))
    x = float(LEFT)
    for kind, text in entries:
        yield f'<path class="{kind}" d="M{_n(x)} {_n(y - 4)}L{_n(x + 26)} {_n(y - 4)}"/>'
        yield f'<text class="tick" x="{_n(x + 32)}" y="{_n(y)}">{text}</text>'
        x += 32 + CHAR_WIDTH * len(text) + 24
    yield f'<path class="rail-legend" d="{_cross(x + 4, y - 4)}"/>'
    yield f'<text class="tick" x="{_n(x + 14)}" y="{_n(y)}">not finite</text>'


def _describe(curve: Curve, finite: Sequence[float]) -> str:
    steps = [point.step for point in curve.points]
    if finite:
        spread = f"{words.number(min(finite))} to {words.number(max(finite))}"
    else:
        spread = "no finite value"
    lost = words.count(len(curve.points) - len(finite), "nonfinite value")
    marks = "".join(f"; {words.plain(mark.label)}" for mark in curve.marks)
    return f"{curve.title}: steps {min(steps)} to {max(steps)}, {spread}, {lost}{marks}."
