"""The check that holds the steps which two attempts of a run took against each other."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_view import SyntheticRun

from spiketriage.diagnosis.checks import repeated_steps
from spiketriage.nouns.series import LogFacts, Series
from spiketriage.readers.telemetry.run.foreign import choose
from spiketriage.readers.telemetry.run.lineage import Telemetry

METRICS = {"loss": "loss/mean", "grad_norm": "grad/norm"}
# A loss that moves by 0.02 from one step to the next, around a level that falls.
STEPS = np.arange(1, 201)
LOSS = 3.0 - 0.001 * STEPS + 0.01 * (-1.0) ** STEPS


def series(steps, values, attempt=0, written_as="loss"):
    return Series(
        source="train.log",
        name=METRICS.get(written_as, written_as),
        written_as=written_as,
        attempt=attempt,
        rank=None,
        steps=np.asarray(steps, dtype=np.int64),
        values=np.asarray(values, dtype=np.float64),
    )


def finding(*logged):
    logs = (LogFacts(format="x", path=Path("train.log"), series=logged),)
    telemetry = Telemetry(segments=choose(logs).segments, problems=(), logs=logs)
    (found,) = repeated_steps.run(replace(SyntheticRun().view(), telemetry=telemetry))
    return found


def again(first_step, values):
    """The second attempt of a run whose first one took steps 1 to 200."""
    return series(range(first_step, first_step + len(values)), values, attempt=1)


def test_the_same_state_and_data_agree_and_how_well_is_said():
    found = finding(series(STEPS, LOSS), again(101, LOSS[100:] * (1 + 1e-6)))
    assert found.outcome == "agrees"
    assert found.summary == "the first repeated step of 1 restart agrees to 1e-06"
    exact = finding(series(STEPS, LOSS), again(101, LOSS[100:]))
    assert exact.summary == "the first repeated step of 1 restart agrees exactly"


def test_other_data_or_state_is_named_with_both_values_and_stays_context():
    found = finding(series(STEPS, LOSS), again(101, LOSS[100:] + 0.5))
    assert (found.outcome, found.judged, found.where.step) == ("differs", False, 101)
    assert "attempt 1 took again has the loss 3.389, and had 2.889" in found.summary
    assert "unless data was left out on purpose" in found.summary
    assert found.magnitude == pytest.approx(0.5)


def test_it_is_against_the_run_where_the_run_counts_the_same_data():
    read = 64 * STEPS
    logged = (
        *(series(STEPS, LOSS), again(101, LOSS[100:] + 0.5)),
        *(series(STEPS, read, written_as="consumed samples"),),
    )
    same = series(STEPS[100:], read[100:], 1, "consumed samples")
    found = finding(*logged, same)
    assert (found.outcome, found.judged) == ("differs", True)
    assert "as much data had been read" in found.summary
    moved = series(STEPS[100:], read[100:] + 640, 1, "consumed samples")
    found = finding(*logged, moved)
    assert (found.outcome, found.judged) == ("differs", False)
    assert "other data was read (6464 consumed before, 7104 now)" in found.summary


def test_a_gradient_norm_alone_may_differ():
    norms = 1.0 + 0.1 * (-1.0) ** STEPS
    found = finding(
        *(series(STEPS, LOSS), again(101, LOSS[100:])),
        *(
            series(STEPS, norms, 0, "grad_norm"),
            series(STEPS[100:], norms[100:] + 1, 1, "grad_norm"),
        ),
    )
    assert (found.outcome, found.where.step, found.where.key) == ("differs", 101, "grad/norm")


def test_steps_that_part_behind_the_first_are_the_optimizers():
    later = LOSS[100:].copy()
    later[1:] += 0.4
    found = finding(series(STEPS, LOSS), again(101, later))
    assert (found.outcome, found.judged, found.where.step) == ("differs", False, 102)
    assert "row 2 of those" in found.summary
    assert "it is the optimizer's state" in found.summary


def test_an_average_over_an_interval_that_the_restart_cut_is_healthy():
    steps = np.arange(10, 2010, 10)
    later = LOSS[100:].copy()
    later[0] += 0.1
    assert finding(series(steps, LOSS), series(steps[100:], later, 1)).outcome == "agrees"


def test_two_digits_that_a_log_prints_are_not_held_against_it():
    coarse = np.round(2.0 - 0.0001 * STEPS, 2)
    later = coarse[100:].copy()
    later[:3] -= 0.01
    assert finding(series(STEPS, coarse), again(101, later)).outcome == "agrees"


def test_two_restarts_from_one_checkpoint_are_compared():
    crashed = series(range(101, 120), LOSS[100:119], 1)
    found = finding(series(range(1, 101), LOSS[:100]), crashed, series(STEPS[100:], LOSS[100:], 2))
    assert found.summary == "the first repeated step of 1 restart agrees exactly"


def test_another_run_that_starts_over_and_a_restart_without_overlap_are_not_compared():
    over = series(STEPS, LOSS + 1, 1)
    assert finding(series(STEPS, LOSS), over).outcome == "not testable"
    ahead = series(range(201, 301), LOSS[:100], 1)
    assert finding(series(STEPS, LOSS), ahead).outcome == "not testable"


def test_runs_of_our_own_recorder_have_other_checks():
    assert repeated_steps.run(SyntheticRun().view()) == ()


@given(st.integers(0, 2**32 - 1), st.integers(2, 150))
def test_rounding_that_differs_never_accuses(seed, restart):
    rng = np.random.default_rng(seed)
    loss = 3.0 + 0.05 * rng.standard_normal(200)
    rounding = 1 + 1e-4 * rng.uniform(-1, 1, 200 - restart)
    found = finding(series(STEPS, loss), again(restart + 1, loss[restart:] * rounding))
    assert found.outcome == "agrees"


@given(st.integers(0, 2**32 - 1), st.integers(2, 150))
def test_another_level_is_always_told(seed, restart):
    rng = np.random.default_rng(seed)
    loss = 3.0 + 0.05 * rng.standard_normal(200)
    found = finding(series(STEPS, loss), again(restart + 1, loss[restart:] + 0.3))
    assert found.outcome == "differs"
