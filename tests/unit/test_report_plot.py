"""A plot shows every spike, marks what is not finite, and puts each mark where its step is."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest
from dossiers import audit, spike
from hypothesis import given
from hypothesis import strategies as st

from spiketriage.report import build
from spiketriage.report.decimate import Sample, runs, thin
from spiketriage.report.model import Figure
from spiketriage.report.plot import Curve, Mark, Point, draw


def curve(values: dict[int, float], *, log: bool = False, marks: tuple[Mark, ...] = ()) -> Curve:
    points = [Point(step=step, value=value, superseded=False) for step, value in values.items()]
    return Curve(name="loss", title="Loss", unit="nats", points=points, marks=marks, log=log)


def elements(figure: Figure, tag: str, kind: str) -> list[ElementTree.Element]:
    tree = ElementTree.fromstring(f"<svg>{figure.body}</svg>")
    return [element for element in tree.iter(tag) if kind in element.get("class", "").split()]


def step_x(figure: Figure, step: int) -> float:
    """Where a step should stand, from the axis labels alone.

    The rule of three between the outermost two.
    """
    labels = {int(e.get("data-step")): float(e.get("x")) for e in elements(figure, "text", "step")}
    low, high = min(labels), max(labels)
    return labels[low] + (step - low) / (high - low) * (labels[high] - labels[low])


def ys(figure: Figure) -> list[float]:
    (line,) = elements(figure, "path", "production")[:1]
    return [float(y) for _, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", line.get("d"))]


def figures(dossier) -> dict[str, Figure]:
    section = next(s for s in build.build(dossier).sections if s.key == "curves")
    return {figure.name: figure for figure in section.figures}


def test_each_mark_stands_at_its_step():
    for figure in figures(spike()).values():
        marked = {
            kind: float(elements(figure, "line", kind)[0].get("x1"))
            for kind in ("suspect", "onset", "good", "restart")
        }
        steps = {"suspect": 203, "onset": 201, "good": 180, "restart": 121}
        assert marked == pytest.approx(
            {kind: step_x(figure, step) for kind, step in steps.items()}, abs=0.02
        )


def test_the_ring_stands_on_the_value_of_the_suspect_step():
    figure = figures(spike())["loss"]
    (ring,) = elements(figure, "circle", "peak")
    assert float(ring.get("cx")) == pytest.approx(step_x(figure, 203), abs=0.02)
    assert float(ring.get("cy")) == pytest.approx(
        min(ys(figure)), abs=0.02
    )  # 9.417 is the highest loss of all


def test_a_nan_loss_is_a_mark_on_the_rail_and_not_only_a_gap():
    figure = figures(spike())["loss"]
    marks = elements(figure, "path", "rail-mark")
    assert [mark.get("data-step") for mark in marks] == ["205", "206"]
    assert marks[0].find("title").text == "NaN at step 205"
    left = float(re.match(r"M(-?[\d.]+)", marks[0].get("d")).group(1))
    assert left + 4 == pytest.approx(step_x(figure, 205), abs=0.02)


def test_a_run_that_is_nan_throughout_still_has_a_plot():
    figure = draw(curve(dict.fromkeys(range(1, 2001), math.nan)))
    told = [mark.find("title").text for mark in elements(figure, "path", "rail-mark")]
    assert sum(int(text.split()[0]) for text in told) == 2000
    assert len(elements(figure, "path", "production")) == 1  # the legend's sample


@pytest.mark.slow
def test_a_spike_of_one_step_among_200_000_survives():
    values = {step: 2.0 + 0.01 * math.sin(step) for step in range(200_000)}
    calm = ys(draw(curve(values)))
    figure = draw(curve({**values, 123_457: 9.0}))
    assert len(figure.body) < 120_000
    x = step_x(figure, 123_457)
    (line,) = elements(figure, "path", "production")[:1]
    pairs = [(float(a), float(b)) for a, b in re.findall(r"(-?[\d.]+) (-?[\d.]+)", line.get("d"))]
    peak_x, peak_y = min(pairs, key=lambda pair: pair[1])
    assert peak_x == pytest.approx(x, abs=0.02)
    assert sum(y < peak_y + 100 for _, y in pairs) == 1
    assert len(calm) <= 4 * 870


def test_superseded_steps_are_drawn_apart():
    lines = elements(figures(spike())["loss"], "path", "superseded")
    assert len(lines) == 2  # the curve and its legend
    assert len(elements(figures(audit())["loss"], "path", "superseded")) == 0


def test_what_a_log_scale_cannot_show_is_marked():
    figure = draw(curve({1: 1.0, 2: 0.0, 3: -2.0, 4: 10.0}, log=True))
    assert [mark.get("data-step") for mark in elements(figure, "path", "rail-mark")] == ["2", "3"]


def test_a_long_run_has_a_second_look_around_the_suspect_step():
    from dataclasses import replace

    from dossiers import points

    base = spike()
    long = replace(
        base,
        steps=tuple(points(1, 2000, attempt=0)),
        anchors=replace(base.anchors, suspect=1500, onset=1500),
    )
    zoom = figures(long)["loss-zoom"]
    assert float(elements(zoom, "line", "suspect")[0].get("x1")) == pytest.approx(
        step_x(zoom, 1500), abs=0.02
    )
    assert set(figures(spike())) == {"loss", "grad-norm"}


@given(
    values=st.dictionaries(st.integers(0, 10**9), st.floats(width=64), min_size=1, max_size=40),
    log=st.booleans(),
)
def test_any_numbers_can_be_drawn(values, log):
    figure = draw(curve(dict(sorted(values.items())), log=log))
    ElementTree.fromstring(f"<svg>{figure.body}</svg>")
    assert not re.search(r"[\" ML](nan|inf)", figure.body)


@given(
    values=st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=300),
    columns=st.integers(1, 9),
)
def test_decimation_keeps_the_extremes_of_every_column(values, columns):
    samples = [Sample(step=i, x=i * columns / len(values), value=v) for i, v in enumerate(values)]
    finite = [s for s in samples if math.isfinite(s.value)]
    kept = [s for stretch in runs(samples, 1) for s in thin(stretch)]
    assert [s.step for s in kept] == sorted({s.step for s in kept})
    for column in {math.floor(s.x) for s in finite}:
        there = [s.value for s in finite if math.floor(s.x) == column]
        left = [s.value for s in kept if math.floor(s.x) == column]
        assert (min(there), max(there)) == (min(left), max(left))
