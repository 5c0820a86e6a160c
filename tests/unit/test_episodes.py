"""A plateau is one episode with a beginning, a worst and an end; two spikes far apart are two."""

from __future__ import annotations

import json
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from spiketriage.detect.detector import Alarm, Detector, Row
from spiketriage.detect.episodes import Episodes
from spiketriage.tools import watch


def said(losses: dict[int, float], num: int = 300) -> list[Alarm]:
    detector, episodes, lines = Detector(), Episodes(), list[Alarm]()
    for step in range(1, num + 1):
        usual = 3 - step / 1000 + 0.01 * (step % 3)
        row = Row(step=step, loss=losses.get(step, usual), grad_norm=1.0)
        lines += episodes.feed(detector.feed(row))
    return [*lines, *episodes.end()]


def test_a_jump_that_stays_is_said_at_its_beginning_and_at_its_end() -> None:
    lines = said({step: 9.0 - (step == 155) for step in range(150, 170)})
    assert (lines[0].step, lines[0].trigger) == (150, "band")
    assert [line.trigger for line in lines].count("over") == 1
    last = lines[-1]
    assert (last.trigger, last.step, last.value) == ("over", 150, 9.0)
    assert 160 <= last.raised_at <= 180
    assert "since step 150; the worst, step" in last.sentence


def test_a_lone_spike_is_one_line() -> None:
    assert [(line.step, line.trigger) for line in said({150: 9.0})] == [(150, "band")]


def test_two_spikes_far_apart_are_two_episodes() -> None:
    lines = said({150: 9.0, 200: 9.0})
    assert [line.step for line in lines] == [150, 200]


def test_a_run_that_stays_nan_is_two_lines() -> None:
    lines = said(dict.fromkeys(range(150, 301), math.nan))
    assert [line.trigger for line in lines] == ["nonfinite", "over"]
    assert "151 rows" in lines[-1].sentence


@given(st.sets(st.integers(100, 300)))
@settings(deadline=None)
def test_every_alarm_lies_in_an_episode_that_was_said(steps: set[int]) -> None:
    detector = Detector()
    lines = said(dict.fromkeys(steps, 9.0))
    begins = [line.step for line in lines if line.trigger != "over"]
    for step in range(1, 301):
        usual = 3 - step / 1000 + 0.01 * (step % 3)
        row = Row(step=step, loss=9.0 if step in steps else usual, grad_norm=1.0)
        for alarm in detector.feed(row).alarms:
            assert any(begin <= alarm.step for begin in begins)


def test_watch_counts_every_alarm_and_says_an_episode_once() -> None:
    trace = [json.dumps({"step": n, "loss": 9.0 if n >= 150 else 2.0}) for n in range(1, 170)]
    lines: list[Alarm] = []
    assert watch.read((line.encode() for line in trace), lines.append) == 1
    assert [line.step for line in lines if line.trigger == "band"] == [150]
    assert lines[-1].trigger == "over"
