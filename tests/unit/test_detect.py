"""What the spike rules see in made-up traces, and what they must not see."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spiketriage.detect.detector import Detector, Row, Trace, scan


def trace(num_steps=300, seed=0, **changes):
    rng = np.random.default_rng(seed)
    steps = np.arange(1, num_steps + 1, dtype=np.float64)
    arrays = {
        "loss": 2.6 + 3.0 * np.exp(-steps / 25) + rng.normal(0, 0.08, num_steps),
        "grad_norm": np.exp(rng.normal(-0.2, 0.15, num_steps)),
        "update_norm": 20e-3 * np.exp(rng.normal(0, 0.03, num_steps)),
        "lr": np.full(num_steps, 1e-3),
    }
    for name, points in changes.items():
        for step, factor in points.items():
            arrays[name][step - 1] *= factor
    return Trace(steps=steps, **arrays)


@pytest.mark.parametrize("seed", range(8))
def test_a_healthy_run_with_a_steep_start_raises_no_alarm(seed):
    assert scan(trace(seed=seed)) == ()


@pytest.mark.parametrize(
    ("signal", "factor"), [("loss", 2.0), ("loss", 0.5), ("grad_norm", 8.0), ("grad_norm", 0.1)]
)
def test_one_value_far_out_on_either_side_is_found_at_its_step(signal, factor):
    alarms = scan(trace(**{signal: {231: factor}}))
    assert [(alarm.step, alarm.signal) for alarm in alarms] == [(231, signal)]
    assert ("above" if factor > 1 else "below") in alarms[0].sentence


def test_a_spike_soon_after_a_steep_start_is_found():
    assert scan(trace(loss={150: 1.9}))[0].step == 150


def test_update_norm_is_judged_relative_to_the_learning_rate():
    steps = dict.fromkeys(range(200, 301), 3.0)
    assert scan(trace(lr=steps, update_norm=steps)) == ()
    assert scan(trace(update_norm={200: 3.0}))[0].signal == "update_norm / lr"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_nonfinite_loss_is_its_own_trigger_even_in_warm_up_and_blinds_nothing_later(value):
    one = trace(grad_norm={231: 8.0})
    one.loss[2] = value
    alarms = scan(one)
    assert [(alarm.step, alarm.signal) for alarm in alarms] == [(3, "loss"), (231, "grad_norm")]
    assert alarms[0].score == math.inf


@pytest.mark.parametrize("row", [5, 12, 40, 63])
def test_at_the_start_a_coarse_rule_sees_a_jump_and_only_upward(row):
    assert [(a.step, a.trigger) for a in scan(trace(loss={row: 3.0}))] == [(row, "start-up")]
    assert scan(trace(loss={row: 1.05})) == ()
    assert scan(trace(loss={row: 0.3})) == ()


def test_the_second_row_is_judged_by_the_first():
    assert [a.step for a in scan(trace(loss={2: 4.0}))] == [2]


def test_a_huge_value_is_not_learned_so_a_smaller_one_after_it_is_still_found():
    assert [a.step for a in scan(trace(loss={200: 50.0, 205: 1.6}))] == [200, 205]


def test_a_lasting_shift_within_the_band_is_found_from_its_first_step():
    one = trace()
    one.loss[199:] += 0.35
    alarms = scan(one)
    assert alarms
    assert 198 <= alarms[0].step <= 206


def test_more_than_forty_outliers_become_the_new_normal():
    one = trace(num_steps=400)
    one.grad_norm[200:] *= 30
    steps = [alarm.step for alarm in scan(one) if alarm.signal == "grad_norm"]
    assert steps == list(range(201, 242))


def test_short_and_empty_traces_are_quiet():
    assert scan(trace(num_steps=5)) == ()
    assert scan(trace(num_steps=0)) == ()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), step=st.integers(100, 250))
def test_alarms_depend_only_on_the_past(seed, step):
    whole = scan(trace(seed=seed, loss={step: 2.5}))
    one = trace(seed=seed, loss={step: 2.5})
    cut = Trace(
        **{
            name: getattr(one, name)[:step]
            for name in ("steps", "loss", "grad_norm", "update_norm", "lr")
        }
    )
    assert [a for a in whole if a.step == step and "stays" not in a.sentence] == [
        a for a in scan(cut) if a.step == step
    ]
    assert any(a.step == step and a.signal == "loss" for a in whole)


def rows(num=300, seed=0, **changes):
    """A healthy run as rows with every signal.

    `changes` are {row number: value} by signal, None takes a key away.
    """
    rng = np.random.default_rng(seed)
    made = []
    for step in range(1, num + 1):
        row = {
            "loss": 2.6 + 3.0 * math.exp(-step / 25) + rng.normal(0, 0.05),
            "grad_norm": math.exp(rng.normal(0, 0.1)),
            "update_norm": 1e-3 * 20 * math.exp(rng.normal(0, 0.03)),
            "lr": 1e-3,
            "rms_t": math.exp(rng.normal(0, 0.1)),
            "logz": 8 + rng.normal(0, 0.05),
            "attention_max": 10 * math.exp(rng.normal(0, 0.05)),
        }
        row |= {name: points[step] for name, points in changes.items() if step in points}
        made.append(Row(step=step, **row))
    return made


def alarms(some, **more):
    detector = Detector(**more)
    return [alarm for row in some for alarm in detector.feed(row).alarms]


def told(some, **more):
    return [(alarm.raised_at, alarm.signal, alarm.trigger) for alarm in alarms(some, **more)]


def test_a_healthy_run_with_every_signal_is_quiet():
    assert told(rows()) == []


@pytest.mark.parametrize(
    ("signal", "value"),
    [
        ("rms_t", 3.0),
        ("rms_t", 0.3),
        ("logz", 11.0),
        ("logz", 5.0),
        ("attention_max", 60.0),
        ("update_norm", 0.04),
    ],
)
def test_every_recorded_signal_has_a_band_on_both_sides(signal, value):
    name = "update_norm / lr" if signal == "update_norm" else signal
    assert told(rows(**{signal: {201: value}})) == [(201, name, "band")]


@pytest.mark.parametrize(
    "signal", ["loss", "grad_norm", "update_norm", "rms_t", "logz", "attention_max"]
)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e200])
def test_a_nonfinite_value_of_any_signal_is_an_alarm_at_any_row(signal, value):
    assert [(at, trigger) for at, _, trigger in told(rows(**{signal: {1: value, 150: value}}))] == [
        (1, "nonfinite"),
        (150, "nonfinite"),
    ]


def test_a_loss_that_vanishes_is_an_alarm_where_it_used_to_be_and_only_there():
    gone = dict.fromkeys(range(100, 110), None)
    assert told(rows(loss=gone)) == [(100, "loss", "missing")]
    assert told(rows(loss=gone), logs_at_will=True) == []
    assert told(rows(loss={step: None for step in range(1, 301) if step % 5})) == []
    evaluation = [*rows(num=100), Row(step=100), *rows(num=200)[100:]]
    assert told(evaluation) == []


def test_a_nan_that_a_filter_wrote_as_zero_and_a_norm_of_minus_one_are_seen():
    assert told(rows(loss={150: 0.0})) == [(150, "loss", "vanished")]
    assert told(rows(grad_norm={150: -1.0})) == [(150, "grad_norm", "nonfinite")]
    assert told(rows(grad_norm={150: 0.0})) == [(150, "grad_norm", "vanished")]


def test_losses_that_are_mostly_zero_are_healthy_where_they_always_were():
    rng = np.random.default_rng(3)
    sparse = [
        Row(step=at, loss=0.0 if rng.random() < 0.8 else rng.normal(0, 0.05)) for at in range(2000)
    ]
    assert told(sparse) == []


def test_a_zero_that_the_run_has_shown_is_no_news():
    assert told(rows(grad_norm={150: 0.0, 200: 0.0, 250: 0.0})) == [(150, "grad_norm", "vanished")]
    assert told(rows(grad_norm={3: 0.0, 150: 0.0})) == []
    assert told(rows(loss={3: 0.0, 150: 0.0})) == []


def groups(num=2000, seed=0, share=0.05):
    """A run of GRPO: loss about zero, and no gradient at all where all rewards of a group agree."""
    rng = np.random.default_rng(seed)
    made = []
    for step in range(1, num + 1):
        agrees = rng.random() < share
        norm = 0.0 if agrees else float(np.exp(rng.normal(-2.5, 0.4)))
        loss = 0.0 if agrees else round(float(rng.normal(0, 0.02)), 4)
        made.append(Row(step=step, loss=loss, grad_norm=norm, lr=1e-6))
    return made


@pytest.mark.parametrize("share", [0.01, 0.05, 0.5, 0.97])
@pytest.mark.parametrize("seed", range(3))
def test_groups_whose_rewards_agree_are_healthy_and_a_nan_among_them_is_not(share, seed):
    some = groups(share=share, seed=seed)
    assert told(some) == []
    some[1000] = replace(some[1000], grad_norm=math.nan)
    assert told(some) == [(1001, "grad_norm", "nonfinite")]


def fp16(skips, num=400):
    """Rows of a run with dynamic loss scaling that skips at these rows, infinite gradient and no loss."""
    scale, made = 2.0**16, []
    for step, row in enumerate(rows(num), start=1):
        if step in skips:
            scale /= 2
            made.append(Row(step=step, grad_norm=math.inf, lr=1e-3, loss_scale=scale, skipped=True))
        else:
            made.append(
                Row(
                    step=step,
                    loss=row.loss,
                    grad_norm=row.grad_norm,
                    lr=1e-3,
                    loss_scale=scale,
                    skipped=False,
                )
            )
    return made


def test_the_overflow_skips_of_fp16_are_normal_until_they_do_not_end():
    assert told(fp16({100, 180, 181, 300})) == []
    assert ("loss_scale", "loss-scale") in [one[1:] for one in told(fp16(set(range(200, 230))))]


def test_a_lost_scale_without_a_skip_flag_is_a_skip_too_but_a_constant_scale_excuses_nothing():
    row = {"lr": 1e-3, "grad_norm": math.inf, "loss": 2.6}
    healthy = [
        Row(step=one.step, loss=one.loss, grad_norm=one.grad_norm, lr=1e-3, loss_scale=1024.0)
        for one in rows()
    ]
    assert told([*healthy, Row(step=301, loss_scale=512.0, **row)]) == []
    assert told([*healthy, Row(step=301, loss_scale=1024.0, **row)]) == [
        (301, "grad_norm", "nonfinite")
    ]


def intervals(*counts, every=10):
    """Rows of a log that is written each `every` steps, by how many of those were skipped."""
    healthy, scale, made = rows(len(counts)), 2.0**32, []
    for row, count in zip(healthy, counts, strict=True):
        scale /= 2.0**count
        whole = {"loss": row.loss, "grad_norm": row.grad_norm}
        if count == every:
            whole = {"grad_norm": math.inf}
        step = row.step * every
        made.append(Row(step=step, lr=1e-3, loss_scale=scale, skipped=count, **whole))
    return made


def test_a_row_stands_for_an_interval_and_only_skips_in_a_row_are_counted():
    assert told(intervals(10, 7, 0, 1, *[0] * 80, 1, 0, 2, 0, 1)) == []
    endless = alarms(intervals(10, 7, 0, 1, *[0] * 80, 10, 10))
    assert {(alarm.step, alarm.signal) for alarm in endless} == {(850, "loss_scale")}
    assert "10 steps in a row overflowed" in endless[0].sentence


def test_a_partly_skipped_row_is_judged_by_the_steps_that_were_taken():
    some = intervals(10, 7, 0, 1, *[0] * 80, 1, 0)
    some[84] = replace(some[84], grad_norm=50.0)
    assert told(some) == [(850, "grad_norm", "band")]


def test_at_a_scale_of_one_nothing_is_left_to_back_off_to():
    row = {"lr": 1e-3, "grad_norm": math.inf, "skipped": True}
    healthy = [replace(one, loss_scale=1.0) for one in rows(100)]
    assert told([*healthy, Row(step=101, loss=2.6, loss_scale=1.0, **row)]) == [
        (101, "grad_norm", "nonfinite")
    ]
    down = [replace(one, loss_scale=4.0) for one in rows(100)]
    down += [
        Row(step=101 + at, loss=2.6, loss_scale=max(1.0, 2.0 ** (1 - at)), **row) for at in range(8)
    ]
    # 4 to 2 and 2 to 1 are ordinary; from the first overflow at 1 on, none is.
    assert [at for at, signal, _ in told(down) if signal == "grad_norm"] == [*range(103, 109)]


def test_a_counter_without_a_scale_excuses_an_overflow_until_they_do_not_end():
    row = {"lr": 1e-3, "grad_norm": math.inf, "skipped": 1}
    healthy = rows(100)
    assert told([*healthy, Row(step=101, loss=2.6, **row), *rows(110)[101:]]) == []
    endless = [*healthy, *[Row(step=101 + at, loss=2.6, **row) for at in range(10)]]
    endless = [replace(one, skipped=one.skipped or 0) for one in endless]
    assert told(endless) == [(107, "loss_scale", "loss-scale")]


def test_a_nan_loss_is_an_alarm_even_in_a_skip():
    skipped = Row(
        step=401, loss=math.nan, grad_norm=math.inf, lr=1e-3, loss_scale=2.0**15, skipped=True
    )
    assert told([*fp16(set()), skipped]) == [(401, "loss", "nonfinite")]


def test_a_slow_climb_is_told_once_for_as_much_as_it_climbs():
    climbing = [
        Row(step=one.step, loss=one.loss + max(0.0, (one.step - 400) * 0.001))
        for one in rows(num=900)
    ]
    found = [(signal, trigger) for _, signal, trigger in told(climbing)]
    assert ("loss", "climb") in found
    assert len(found) <= 6


def test_a_run_with_lone_outliers_earns_a_wider_band_but_no_spike_hides_a_far_one():
    lone = dict.fromkeys(range(200, 900, 50), 2.4)  # 5.8 scales: within the band, a surprise
    assert told(rows(num=1000, grad_norm={950: 3.2})) == [(950, "grad_norm", "band")]
    assert told(rows(num=1000, grad_norm={**lone, 950: 3.2})) == []
    after_a_huge_one = told(rows(num=1000, grad_norm={500: 1000.0, 950: 12.0}))
    assert [at for at, _, _ in after_a_huge_one] == [500, 950]


def test_peeking_judges_the_value_and_remembers_nothing():
    detector = Detector()
    for row in rows(num=200):
        detector.feed(row)
    before = json.dumps(detector.state())
    half = Row(step=201, loss=9.0, grad_norm=math.nan)
    assert {alarm.signal for alarm in detector.peek(half).alarms} == {"loss", "grad_norm"}
    assert detector.peek(half).is_nonfinite
    assert not detector.peek(rows(num=201)[-1]).is_anomalous
    assert json.dumps(detector.state()) == before


def test_one_rule_set_the_array_scan_says_what_the_detector_says():
    one = trace(loss={150: 1.9}, grad_norm={220: 9.0})
    columns = ("loss", "grad_norm", "update_norm", "lr")
    fed = [
        Row(step=at + 1, **{name: float(getattr(one, name)[at]) for name in columns})
        for at in range(300)
    ]
    assert list(scan(one)) == alarms(fed)


EVENTS = st.dictionaries(
    st.integers(1, 240), st.sampled_from([math.nan, math.inf, 0.0, -1.0, 9.0, 1e30, None])
)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), cut=st.integers(0, 240), loss=EVENTS, norm=EVENTS)
def test_state_through_json_goes_on_bit_for_bit(seed, cut, loss, norm):
    some = rows(num=240, seed=seed, loss=loss, grad_norm=norm)
    whole = Detector()
    for row in some[:cut]:
        whole.feed(row)
    restored = Detector.restore(json.loads(json.dumps(whole.state(), allow_nan=False)))
    for row in some[cut:]:
        assert repr(restored.feed(row)) == repr(whole.feed(row))
    assert json.dumps(restored.state()) == json.dumps(whole.state())
    assert len(json.dumps(whole.state())) < 60_000


def test_the_state_of_other_rules_is_refused():
    state = Detector().state() | {"schema": 0}
    with pytest.raises(ValueError, match="schema 0"):
        Detector.restore(state)
