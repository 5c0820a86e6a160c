"""What the spike rules see in made-up traces, and what they must not see."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spiketriage.detect import Trace, scan


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


@pytest.mark.parametrize(("signal", "factor"), [("loss", 2.0), ("loss", 0.5), ("grad_norm", 8.0), ("grad_norm", 0.1)])
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


def test_nothing_finite_is_judged_before_sixty_four_accepted_values():
    assert scan(trace(loss={40: 5.0})) == ()


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
    cut = Trace(**{name: getattr(one, name)[:step] for name in ("steps", "loss", "grad_norm", "update_norm", "lr")})
    assert [a for a in whole if a.step == step and "stays" not in a.sentence] == [
        a for a in scan(cut) if a.step == step
    ]
    assert any(a.step == step and a.signal == "loss" for a in whole)
