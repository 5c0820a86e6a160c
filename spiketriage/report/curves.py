"""The section with the plots: loss and gradient norm, the anchors marked, notable steps listed.

It decides what is plotted and never how a curve looks, which is `plot`'s business.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from spiketriage.nouns.incident import Anchors, Dossier, StepPoint
from spiketriage.report import words
from spiketriage.report.model import Figure, Row, Section, Table, number, text
from spiketriage.report.plot import Curve, Mark, Point, draw
from spiketriage.report.sections import known_good_step, suspect_step, unfilled

ZOOM_BEFORE, ZOOM_AFTER = 150, 100
ZOOM_FROM_STEPS = 600  # a shorter window is legible as it is
# The table lists the steps this near to an anchor, and at most so many: what fits a screen or two.
NEAR_STEPS, MAX_ROWS = 12, 120
FIGURE_NAMES = ("loss", "grad-norm", "loss-zoom", "grad-norm-zoom")
COLUMNS = (
    number("Step"),
    number("Attempt"),
    number("Loss"),
    number("Gradient norm"),
    number("Update norm"),
    number("lr"),
    text("Alarm"),
)


def section(dossier: Dossier) -> Section:
    """Loss and gradient norm per step."""
    key, title = "curves", "Loss and gradient norm"
    if not dossier.steps:
        what = "No production steps are kept, so nothing can be plotted."
        return unfilled(dossier, key=key, title=title, what=what, step="freeze")
    points = sorted(dossier.steps, key=lambda point: (point.step, point.attempt))
    return Section(
        key=key,
        title=title,
        paragraphs=_outside(dossier, points),
        figures=_figures(dossier, points),
        tables=(_table(dossier, points),),
    )


def _figures(dossier: Dossier, points: Sequence[StepPoint]) -> tuple[Figure, ...]:
    """Both curves, and where they are long, both again around the suspect step."""
    marks = _marks(dossier, points)
    figures = _pair(points, marks, suffix="", around="")
    suspect = suspect_step(dossier)
    if suspect is None or points[-1].step - points[0].step <= ZOOM_FROM_STEPS:
        return figures
    near = [p for p in points if suspect - ZOOM_BEFORE <= p.step <= suspect + ZOOM_AFTER]
    if not near:
        return figures
    return figures + _pair(near, marks, suffix="-zoom", around=", around the suspect step")


def _pair(
    points: Sequence[StepPoint], marks: tuple[Mark, ...], *, suffix: str, around: str
) -> tuple[Figure, ...]:
    losses = [point.loss for point in points]
    norms = [point.grad_norm for point in points]
    loss = Curve(
        name=f"loss{suffix}",
        title=f"Loss{around}",
        unit="nats per token",
        points=_points(points, losses),
        marks=marks,
        log=False,
    )
    norm = Curve(
        name=f"grad-norm{suffix}",
        title=f"Gradient norm{around}",
        unit="L2 before clipping",
        points=_points(points, norms),
        marks=marks,
        log=True,
    )
    return draw(loss), draw(norm)


def _points(points: Sequence[StepPoint], values: Sequence[float]) -> list[Point]:
    # Points come in the order of step and attempt: of several attempts at a step the last one wins.
    newest = {point.step: point.attempt for point in points}
    plotted = []
    for point, value in zip(points, values, strict=True):
        is_superseded = point.attempt < newest[point.step]
        plotted.append(Point(step=point.step, value=value, superseded=is_superseded))
    return plotted


def _marks(dossier: Dossier, points: Sequence[StepPoint]) -> tuple[Mark, ...]:
    marks = []
    if dossier.anchors is not None:
        marks += _anchor_marks(dossier.anchors)
    good = known_good_step(dossier)
    if good is not None:
        marks.append(Mark(step=good, kind="good", label=f"known good {good}"))
    first_steps: dict[int, int] = {}
    for point in points:
        first_steps.setdefault(point.attempt, point.step)
    for attempt in sorted(first_steps)[1:]:
        step = first_steps[attempt]
        marks.append(Mark(step=step, kind="restart", label=f"restart {attempt} at {step}"))
    return tuple(marks)


def _anchor_marks(anchors: Anchors) -> list[Mark]:
    onset, suspect = anchors.onset, anchors.suspect
    if suspect is not None and onset == suspect:
        return [Mark(step=suspect, kind="suspect", label=f"onset and suspect {suspect}")]
    marks = []
    if suspect is not None:
        marks.append(Mark(step=suspect, kind="suspect", label=f"suspect {suspect}"))
    if onset is not None:
        marks.append(Mark(step=onset, kind="onset", label=f"onset {onset}"))
    return marks


def _outside(dossier: Dossier, points: Sequence[StepPoint]) -> tuple[str, ...]:
    """Where known good lies, when that is outside the picture."""
    good = known_good_step(dossier)
    if good is None or points[0].step <= good <= points[-1].step:
        return ()
    side = "after"
    if good < points[0].step:
        side = "before"
    return (f"Known good (step {good}) lies {side} the steps that are kept and is not marked.",)


def _table(dossier: Dossier, points: Sequence[StepPoint]) -> Table:
    """The steps near an anchor and those with an alarm or a nonfinite value, up to a limit."""
    centres = _centres(dossier) or [points[-1].step]

    def distance(point: StepPoint) -> int:
        return min(abs(point.step - centre) for centre in centres)

    listed = [p for p in points if _is_notable(p) or distance(p) <= NEAR_STEPS]
    nearest = sorted(listed, key=distance)[:MAX_ROWS]
    shown = sorted(nearest, key=lambda point: (point.step, point.attempt))
    caption = (
        f"Steps near the anchors, alarms and nonfinite values: {len(shown)} of {len(points)} "
        "recorded points"
    )
    rows = tuple(map(_row, shown))
    return Table(caption=caption, columns=COLUMNS, rows=rows, folded=True)


def _centres(dossier: Dossier) -> list[int]:
    if dossier.anchors is None:
        return []
    anchors = (dossier.anchors.onset, dossier.anchors.suspect)
    return [step for step in anchors if step is not None]


def _is_notable(point: StepPoint) -> bool:
    values = (point.loss, point.grad_norm, point.update_norm)
    return bool(point.alarm) or not all(map(math.isfinite, values))


def _row(point: StepPoint) -> Row:
    cells = (
        str(point.step),
        str(point.attempt),
        words.number(point.loss),
        words.number(point.grad_norm),
        words.number(point.update_norm),
        words.number(point.lr),
        words.plain(point.alarm),
    )
    return Row(cells=cells, tone="warn" if _is_notable(point) else "")
