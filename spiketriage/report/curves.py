"""The section with the plots.

Loss and gradient norm per step, the anchors marked, the telling steps listed.

It decides what is plotted; how a curve looks is `plot`'s business.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from spiketriage.nouns.incident import Dossier, StepPoint
from spiketriage.report import commands, words
from spiketriage.report.model import Column, Figure, Missing, Row, Section, Table
from spiketriage.report.plot import Curve, Mark, Point, draw

ZOOM_BEFORE, ZOOM_AFTER = 150, 100
ZOOM_FROM_STEPS = 600  # a shorter window is legible as it is
NEAR, MAX_ROWS = 12, 120
FIGURE_NAMES = ("loss", "grad-norm", "loss-zoom", "grad-norm-zoom")


def section(dossier: Dossier) -> Section:
    """Loss and gradient norm per step."""
    title = "Loss and gradient norm"
    if not dossier.steps:
        missing = Missing(
            what="No production steps are kept, so nothing can be plotted.",
            command=commands.command(dossier, "freeze"),
        )
        return Section(key="curves", title=title, missing=missing)
    points = sorted(dossier.steps, key=lambda point: (point.step, point.attempt))
    marks = _marks(dossier, points)
    figures = _figures(points, marks, "")
    suspect = _suspect(dossier)
    if suspect is not None and points[-1].step - points[0].step > ZOOM_FROM_STEPS:
        near = [p for p in points if suspect - ZOOM_BEFORE <= p.step <= suspect + ZOOM_AFTER]
        figures += _figures(near, marks, "-zoom") if near else ()
    paragraphs = _outside(dossier, points)
    return Section(
        key="curves",
        title=title,
        paragraphs=paragraphs,
        figures=figures,
        tables=(_table(dossier, points),),
    )


def _suspect(dossier: Dossier) -> int | None:
    if dossier.anchors:
        return dossier.anchors.suspect
    return None


def _figures(
    points: Sequence[StepPoint], marks: tuple[Mark, ...], suffix: str
) -> tuple[Figure, ...]:
    newest = {
        point.step: point.attempt for point in points
    }  # in step, attempt order: the last attempt wins
    around = ", around the suspect step" if suffix else ""
    curves = (
        ("loss", "Loss", "nats per token", [p.loss for p in points]),
        ("grad-norm", "Gradient norm", "L2 before clipping", [p.grad_norm for p in points]),
    )
    result: list[Figure] = []
    for name, title, unit, values in curves:
        result.append(
            draw(
                Curve(
                    name=f"{name}{suffix}",
                    title=f"{title}{around}",
                    unit=unit,
                    marks=marks,
                    log=name == "grad-norm",
                    points=[
                        Point(step=p.step, value=value, superseded=p.attempt < newest[p.step])
                        for p, value in zip(points, values, strict=True)
                    ],
                )
            )
        )
    return tuple(result)


def _marks(dossier: Dossier, points: Sequence[StepPoint]) -> tuple[Mark, ...]:
    marks = []
    anchors = dossier.anchors
    if anchors is not None:
        onset, suspect = anchors.onset, anchors.suspect
        if suspect is not None:
            if onset == suspect:
                label = f"onset and suspect {suspect}"
            else:
                label = f"suspect {suspect}"
            marks.append(Mark(step=suspect, kind="suspect", label=label))
        if onset is not None and onset != suspect:
            marks.append(Mark(step=onset, kind="onset", label=f"onset {onset}"))
        good = words.generation_step(anchors.known_good)
        if good is not None:
            marks.append(Mark(step=good, kind="good", label=f"known good {good}"))
    first_steps: dict[int, int] = {}
    for point in points:
        first_steps.setdefault(point.attempt, point.step)
    for attempt in sorted(first_steps)[1:]:
        step = first_steps[attempt]
        marks.append(Mark(step=step, kind="restart", label=f"restart {attempt} at {step}"))
    return tuple(marks)


def _outside(dossier: Dossier, points: Sequence[StepPoint]) -> tuple[str, ...]:
    if dossier.anchors:
        good = words.generation_step(dossier.anchors.known_good)
    else:
        good = None
    if good is None or points[0].step <= good <= points[-1].step:
        return ()
    side = "before" if good < points[0].step else "after"
    return (f"Known good (step {good}) lies {side} the steps that are kept and is not marked.",)


def _table(dossier: Dossier, points: Sequence[StepPoint]) -> Table:
    """List the steps near an anchor, and every one that raised an alarm or is not finite, up to a limit."""
    anchors = dossier.anchors
    if anchors:
        centres = [s for s in (anchors.onset, anchors.suspect) if s is not None]
    else:
        centres = []
    if not centres:
        centres = [points[-1].step]
    telling = [
        p for p in points if _telling(p) or any(abs(p.step - centre) <= NEAR for centre in centres)
    ]
    telling.sort(key=lambda p: min(abs(p.step - centre) for centre in centres))
    shown = sorted(telling[:MAX_ROWS], key=lambda p: (p.step, p.attempt))
    columns = (
        *(Column(title="Step", style="number"), Column(title="Attempt", style="number")),
        *(Column(title="Loss", style="number"), Column(title="Gradient norm", style="number")),
        *(
            Column(title="Update norm", style="number"),
            Column(title="lr", style="number"),
            Column(title="Alarm"),
        ),
    )
    caption = (
        f"Steps near the anchors, alarms and nonfinite values: {len(shown)} of {len(points)} "
        "recorded points"
    )
    return Table(caption=caption, columns=columns, rows=tuple(_row(p) for p in shown), folded=True)


def _telling(point: StepPoint) -> bool:
    return bool(point.alarm) or not all(
        map(math.isfinite, (point.loss, point.grad_norm, point.update_norm))
    )


def _row(point: StepPoint) -> Row:
    values = (point.loss, point.grad_norm, point.update_norm, point.lr)
    cells = (
        str(point.step),
        str(point.attempt),
        *map(words.number, values),
        words.plain(point.alarm),
    )
    return Row(cells=cells, tone="warn" if _telling(point) else "")
