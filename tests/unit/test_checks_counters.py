"""Checks that hold a log's own numbers against each other: what it consumed, what its loss can be."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_view import SyntheticRun

from spiketriage.diagnosis.checks import consumed_counters, logged_lr, loss_bounds
from spiketriage.nouns.series import LogFacts, Series
from spiketriage.readers.telemetry.run.lineage import Telemetry


def series(written_as, steps, values, attempt=0, name=None):
    return Series(
        source="train.log",
        name=name or written_as,
        written_as=written_as,
        attempt=attempt,
        rank=None,
        steps=np.asarray(steps, dtype=np.int64),
        values=np.asarray(values, dtype=np.float64),
    )


def outcome(check, *logged):
    logs = (LogFacts(format="x", path=Path("train.log"), series=logged),) if logged else ()
    telemetry = Telemetry(segments=(), problems=(), logs=logs)
    findings = check.run(replace(SyntheticRun().view(), telemetry=telemetry))
    return findings[0] if findings else None


def consumed(steps, values, attempt=0):
    return series("consumed samples", steps, values, attempt)


def test_a_counter_that_goes_back_while_steps_go_on_names_step_and_both_values():
    steps = np.arange(1, 401)
    values = np.where(steps <= 200, 64 * steps, 64 * (steps - 100))
    loss = 2.0 - 0.4 * (steps > 200) + 0.01 * (-1.0) ** steps
    found = outcome(
        consumed_counters,
        consumed(steps, values),
        series("lm loss", steps, loss, name="loss/mean"),
    )
    assert (found.outcome, found.where.step, found.magnitude) == ("differs", 201, 12800 - 6464)
    assert "go from 12800 (step 200) to 6464" in found.summary
    assert "the loss shifts there from 2 to 1.6" in found.summary


def test_a_steady_loss_is_not_called_shifted():
    steps = np.arange(1, 101)
    values = np.where(steps <= 50, 64 * steps, 64 * (steps - 20))
    loss = 2.0 + 0.01 * (-1.0) ** steps
    found = outcome(
        consumed_counters,
        consumed(steps, values),
        series("lm loss", steps, loss, name="loss/mean"),
    )
    assert found.outcome == "differs"
    assert "shifts" not in found.summary


def test_a_restart_that_goes_back_with_its_counter_is_healthy():
    first = consumed(range(1, 101), range(8, 808, 8))
    second = consumed(range(81, 201), range(648, 1608, 8), attempt=1)
    assert outcome(consumed_counters, first, second).outcome == "agrees"


def test_a_restart_whose_counter_began_anew_is_not():
    first = consumed(range(1, 101), range(8, 808, 8))
    second = consumed(range(101, 201), range(8, 808, 8), attempt=1)
    found = outcome(consumed_counters, first, second)
    assert (found.outcome, found.where.step) == ("differs", 101)


def test_a_restart_that_leaves_data_out_is_named():
    first = consumed(range(1, 101), range(8, 808, 8))
    second = consumed(range(101, 201), range(8008, 8808, 8), attempt=1)
    found = outcome(consumed_counters, first, second)
    assert (found.outcome, found.where.step) == ("differs", 101)
    assert "jumped ahead at a restart" in found.summary


@given(st.lists(st.integers(1, 4096), min_size=2, max_size=80))
def test_no_batch_ramp_within_one_attempt_is_an_accusation(batches):
    steps = np.arange(1, len(batches) + 1)
    assert outcome(consumed_counters, consumed(steps, np.cumsum(batches))).outcome == "agrees"


def test_without_a_counter_nothing_is_tested_and_our_own_runs_have_other_checks():
    loss = series("loss", [1, 2], [2.0, 1.9], name="loss/mean")
    assert outcome(consumed_counters, loss).outcome == "not testable"
    assert outcome(consumed_counters) is None
    assert outcome(loss_bounds) is None


def test_a_cross_entropy_below_zero_is_named_and_a_policy_loss_is_not():
    steps, values = [1, 2, 3], [0.2, -0.1, -0.2]
    found = outcome(loss_bounds, series("lm loss", steps, values, name="loss/mean"))
    assert (found.outcome, found.where.step) == ("differs", 2)
    assert "2 steps in all" in found.summary
    policy = series("actor/pg_loss", steps, values, name="loss/mean")
    assert outcome(loss_bounds, policy).outcome == "agrees"


def test_a_loss_that_stays_at_a_uniform_guess_says_that_nothing_is_learned():
    steps = np.arange(10, 5010, 10)
    values = np.full(len(steps), np.log(50257)) + 1e-4 * np.sin(steps)
    values[:20] += np.linspace(1.0, 0.1, 20)
    found = outcome(loss_bounds, series("loss", steps, values, name="loss/mean"))
    assert (found.outcome, found.where.step) == ("differs", 210)
    assert "nothing is learned" in found.summary
    assert float(found.seen) == pytest.approx(np.log(50257), rel=1e-4)


@pytest.mark.parametrize("level", [0.0001, 0.03, 2.3])
def test_a_low_loss_that_stays_has_been_learned(level):
    steps = np.arange(1, 1001)
    loss = series("loss", steps, np.full(1000, level), name="loss/mean")
    assert outcome(loss_bounds, loss).outcome == "agrees"


def test_a_plateau_with_ordinary_noise_is_not_constant():
    rng = np.random.default_rng(3)
    steps = np.arange(1, 1001)
    loss = series("loss", steps, 7.2 + 0.05 * rng.standard_normal(1000), name="loss/mean")
    assert outcome(loss_bounds, loss).outcome == "agrees"


def rates(steps, values, attempt=0):
    return series("learning rate", steps, values, attempt, name="lr")


def test_a_schedule_that_begins_anew_at_a_restart_is_named():
    first = rates(range(101, 201), np.full(100, 3e-4))
    second = rates(range(201, 301), np.linspace(3e-6, 3e-4, 100), attempt=1)
    found = outcome(logged_lr, first, second)
    assert (found.outcome, found.where.step) == ("differs", 201)
    assert found.magnitude == pytest.approx(0.01)


def test_a_warm_up_or_decay_that_goes_on_over_a_restart_is_healthy():
    warm_up = 1e-6 * np.arange(1, 401)
    first, second = rates(range(1, 201), warm_up[:200]), rates(range(151, 401), warm_up[150:], 1)
    assert outcome(logged_lr, first, second).outcome == "agrees"
    early = rates(range(1, 4), warm_up[:3]), rates(range(4, 401), warm_up[3:], 1)
    assert outcome(logged_lr, *early).outcome == "agrees"


def test_a_rate_that_jumps_within_an_attempt_is_the_schedules_own_affair():
    steps = rates(range(1, 101), np.where(np.arange(100) < 50, 1e-3, 1e-4))
    assert outcome(logged_lr, steps).outcome == "not testable"
