"""The guard in a loop.

A skip changes no bit, the accounts are exact, and a resumed run goes on as if uninterrupted.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from guard_loop import Faults, Loop
from hypothesis import given, settings
from hypothesis import strategies as st
from recording import IDENTITY, ROOT

from spiketriage.detect.detector import Trigger
from spiketriage.detect.rules import alarm
from spiketriage.errors import EvidenceError, GuardStopError, UsageError
from spiketriage.readers.telemetry.stores.native import read_segment
from spiketriage.train.guarding.guard import Decision, Guard, Policy
from spiketriage.train.guarding.policy import (
    ACTIONS,
    KINDS,
    is_far_out,
    kind_of,
)
from spiketriage.train.guarding.undo import UndoCopy
from spiketriage.train.recording.recorder import Recorder

SKIPS = Policy(outlier="skip", max_repeats=100)
FAULTS: Faults = {
    3: ("nan-loss", 0),
    9: ("nan-gradient", 0),
    75: ("nan-loss", 0),
    76: ("nan-loss", 0),
    80: ("spike", 0),
}


def steady(guard: Guard, steps: range, **odd: Any) -> Decision:
    """Healthy steps with a little noise; `odd` replaces values of each."""
    for step in steps:
        noise = 0.01 * math.sin(7.0 * step)
        told = {
            "loss_sum": 8 * (2.0 + noise),
            "grad_norm": 1.0 + noise,
            "lr": 1e-3,
            "ids": [f"d{step}"],
            **odd,
        }
        decision = guard.decide(step=step, num_tokens=8, **told)
    return decision


# Bits and accounts
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("holds", [False, True], ids=["held back", "put back"])
def test_a_skip_leaves_every_bit_as_it_was(holds: bool) -> None:
    loop = Loop(FAULTS, holds=holds).train(90)
    skipped = [step for step, action, *_ in loop.told if action == "skip"]
    assert skipped == [3, 75, 76, 80]
    assert loop.kept == [True] * 4


def test_a_skip_moves_step_cursor_tokens_and_generators_on_and_the_scheduler_not() -> None:
    with_skips, without = Loop(FAULTS).train(90), Loop({}).train(90)
    assert with_skips.accounts() == without.accounts()
    counts = with_skips.guard.accounts
    # 9 is an overflow of the loss scale, which skips too
    assert (counts.num_steps, counts.num_taken, counts.num_skipped) == (90, 85, 5)
    assert (counts.num_tokens, counts.num_tokens_skipped) == (90 * 8, 5 * 8)
    assert with_skips.scheduler.last_epoch == counts.num_taken


@pytest.mark.parametrize("stops", [(40,), (75,), (76, 79, 80)])
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(stops: tuple[int, ...]) -> None:
    through = Loop(FAULTS).train(90)
    loop, told = Loop(FAULTS), []
    for stop in (*stops, 90):
        told += loop.train(stop).told
        last, loop = loop, Loop.resume(loop.save(), FAULTS)
    assert told == through.told
    assert last.everything() == through.everything()


def test_without_its_state_a_resumed_guard_would_decide_otherwise() -> None:
    loop = Loop.resume(Loop(FAULTS).train(79).save(), FAULTS)
    loop.guard = Guard(SKIPS)
    assert loop.train(80).told[0][1] == "none"


def test_put_back_removes_the_moments_that_the_first_update_made() -> None:
    parameter = torch.nn.Parameter(torch.tensor([1.0, -0.0]))
    optimizer = torch.optim.AdamW([parameter], lr=0.1)
    undo = UndoCopy([parameter], optimizer=optimizer)
    undo.take()
    parameter.grad = torch.full((2,), float("nan"))
    optimizer.step()
    assert parameter.isnan().all()
    undo.put_back()
    assert parameter.detach().numpy().tobytes() == torch.tensor([1.0, -0.0]).numpy().tobytes()
    assert optimizer.state == {}
    with pytest.raises(UsageError, match="nothing is held"):
        undo.put_back()


# Triggers
# ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "odd",
    [
        {"loss_sum": 8 * 3.0},
        {"loss_sum": 8 * 0.5},
        {"grad_norm": torch.tensor(100.0)},
        {"grad_norm": 0.01},
        {"loss_sum": 8 * 9.0, "grad_norm": 50.0},
    ],
    ids=["loss up", "loss down", "norm up", "norm down", "both"],
)
def test_the_bands_are_two_sided_and_an_outlier_is_never_learned(odd: dict[str, Any]) -> None:
    guard = Guard(SKIPS)
    assert steady(guard, range(100)).action == "none"
    for step in range(100, 110):
        decision = steady(guard, range(step, step + 1), **odd)
        assert (decision.action, decision.kind) == ("skip", "outlier")
    assert steady(guard, range(110, 111)).action == "none"


@pytest.mark.parametrize(
    ("value", "action"), [(1.3, "none"), (3.6, "alert"), (12.0, "alert"), (100.0, "skip")]
)
def test_what_pages_is_not_yet_skipped(value: float, action: str) -> None:
    guard = Guard(SKIPS)
    steady(guard, range(100))
    decision = steady(guard, range(100, 101), grad_norm=value)
    assert (decision.action, bool(decision.alarms)) == (action, action != "none")
    assert decision.num_repeats == (action == "skip")  # an alert costs no patience


@pytest.mark.parametrize("action", ["skip", "rollback", "stop"])
def test_an_outlier_interferes_from_its_own_bar_on_and_a_nonfinite_always(action: Any) -> None:
    policy = Policy(nonfinite=action, outlier=action, drift="alert")
    assert policy.action("outlier", 1, is_far_out=False) == "alert"
    assert policy.action("outlier", 1, is_far_out=True) == action
    assert policy.action("nonfinite", 1, is_far_out=False) == action


@pytest.mark.parametrize(
    ("signal", "value", "expected", "score", "is_far"),
    [
        ("loss", 3.2, 2.0, 30.0, True),
        ("loss", 0.8, 2.0, 30.0, True),
        ("loss", 2.6, 2.0, 19.8, False),  # the farthest of healthy benchmarks
        ("loss", 5.0, 2.0, 9.0, False),  # a noisy run
        ("grad_norm", 40.0, 1.0, 20.0, True),
        ("grad_norm", 0.02, 1.0, 20.0, True),
        ("grad_norm", 17.5, 1.0, 19.1, False),  # of a healthy fine-tuning run
        ("grad_norm", 3.6, 0.4, 14.0, False),
        ("attention_max", 900.0, 1.0, 40.0, False),
    ],
)
def test_only_what_is_far_out_in_scales_and_in_absolute_terms_is_interfered_with(
    signal: str, value: float, expected: float, score: float, is_far: bool
) -> None:
    outlier = alarm(signal, "band", 1, "out", value=value, expected=expected, score=score)
    assert is_far_out(outlier) == is_far
    assert not is_far_out(replace(outlier, trigger="start-up"))


def test_at_the_start_an_outlier_pages_and_only_a_nonfinite_is_skipped() -> None:
    guard = Guard(SKIPS)
    steady(guard, range(20))
    assert steady(guard, range(20, 21), loss_sum=8 * 30.0).action == "alert"
    assert steady(guard, range(21, 22), loss_sum=math.nan).action == "skip"


@pytest.mark.parametrize(
    "odd",
    [
        {"loss_sum": math.nan},
        {"loss_sum": math.inf},
        {"loss_sum": None},
        {"loss_sum": 0.0},
        {"grad_norm": torch.tensor(math.nan)},
        {"grad_norm": -1.0},
        {"num_tokens": 0},
        {"saw_nonfinite": torch.tensor(True)},
    ],
    ids=str,
)
def test_a_nonfinite_in_any_disguise_is_skipped(odd: dict[str, Any]) -> None:
    guard = Guard(Policy())
    steady(guard, range(20))
    told: dict[str, Any] = {"loss_sum": 16.0, "num_tokens": 8, "grad_norm": 1.0, "lr": 1e-3, **odd}
    decision = guard.decide(step=20, **told)
    assert (decision.action, decision.kind, decision.nonfinite_rank) == ("skip", "nonfinite", 0)
    assert (
        decision.sentence == "step 20: nonfinite, seen by rank 0, number 1 without progress: skip"
    )


def test_in_warm_up_only_a_nonfinite_acts() -> None:
    guard = Guard(Policy(outlier="skip", drift="alert", warmup_steps=150))
    steady(guard, range(100))
    quiet = steady(guard, range(100, 101), loss_sum=8 * 9.0)
    assert (quiet.action, quiet.kind, quiet.sentence, len(quiet.alarms)) == ("none", None, "", 1)
    assert steady(guard, range(101, 102), loss_sum=math.nan).action == "skip"
    steady(guard, range(102, 150))
    assert steady(guard, range(150, 151), loss_sum=8 * 9.0).action == "skip"


def test_an_overflow_of_the_loss_scale_is_no_verdict_but_a_nan_loss_beside_it_is() -> None:
    guard = Guard(Policy())
    steady(guard, range(20), loss_scale=1024.0)
    overflow = {"loss_scale": 1024.0, "overflow": True, "grad_norm": math.inf}
    assert steady(guard, range(20, 21), **overflow).kind is None
    assert steady(guard, range(21, 22), loss_sum=math.nan, **overflow).action == "skip"


def test_what_the_update_shows_takes_part_in_the_next_vote_and_only_alerts() -> None:
    guard = Guard(SKIPS)
    for step in range(100):
        steady(guard, range(step, step + 1))
        assert guard.finish(update_norm=torch.tensor(1e-3 + 1e-5 * math.sin(step)), rms_t=1.0) == ()
    steady(guard, range(100, 101))
    (alarm,) = guard.finish(update_norm=1e-2, rms_t=1.0)
    assert (alarm.signal, alarm.step) == ("update_norm / lr", 100)
    guard = Guard(SKIPS, state=json.loads(json.dumps(guard.state())))
    decision = steady(guard, range(101, 102))
    assert (decision.action, decision.kind, decision.alarms) == ("alert", "outlier", (alarm,))
    assert steady(guard, range(102, 103)).action == "none"


# Patience and rollback
# --------------------------------------------------------------------------------------------


def test_the_same_verdict_without_progress_stops() -> None:
    guard = Guard(Policy(max_repeats=3, progress_steps=5))
    for step in (1, 3):
        assert steady(guard, range(step, step + 1), loss_sum=math.nan).action == "skip"
        steady(guard, range(step + 1, step + 2))
    with pytest.raises(GuardStopError, match="number 3 without progress: stop"):
        steady(guard, range(5, 6), loss_sum=math.nan)
    assert guard.last.skip


def test_progress_forgives() -> None:
    guard = Guard(Policy(max_repeats=2, progress_steps=5))
    for step in range(0, 60, 6):
        assert steady(guard, range(step, step + 1), loss_sum=math.nan).num_repeats == 1
        steady(guard, range(step + 1, step + 6))


def test_skips_become_a_rollback_and_rollbacks_that_lead_to_the_same_place_a_stop() -> None:
    asked: list[int] = []
    policy = Policy(skips_before_rollback=1, max_repeats=4, progress_steps=3)
    guard = Guard(policy, known_good=lambda step: asked.append(step) or f"before-{step}")
    steady(guard, range(5))
    saved = json.loads(json.dumps(guard.state()))
    steady(guard, range(5, 10))
    assert steady(guard, range(10, 11), loss_sum=math.nan).action == "skip"
    decision = steady(guard, range(11, 12), loss_sum=math.nan)
    assert (decision.action, decision.generation, decision.skip_ids) == (
        "rollback",
        "before-11",
        ("d11",),
    )
    guard.rolled_back(saved)
    assert guard.accounts.num_steps == 5
    assert guard.skip_ids == ("d11",)
    steady(guard, range(5, 11))  # trained again: no progress
    again = steady(guard, range(11, 12), loss_sum=math.nan, ids=["d12"])
    assert (again.action, again.skip_ids, guard.skip_ids) == ("rollback", ("d12",), ("d11", "d12"))
    guard.rolled_back(saved)
    with pytest.raises(GuardStopError):
        steady(guard, range(10, 11), loss_sum=math.nan)
    assert asked == [11, 11]


def test_a_drift_rolls_back_to_before_it_began_and_leaves_out_every_batch_since() -> None:
    guard = Guard(Policy(drift="rollback"), known_good=lambda step: step)
    steady(guard, range(150))
    step, decision = 150, steady(guard, range(150, 151), loss_sum=8 * 2.12)
    guard = Guard(
        guard.policy, known_good=lambda step: step, state=json.loads(json.dumps(guard.state()))
    )
    while decision.action == "none":
        step += 1
        decision = steady(guard, range(step, step + 1), loss_sum=8 * 2.12)
    assert 157 <= step <= 161
    assert (decision.action, decision.generation) == ("rollback", 150)
    assert decision.skip_ids == tuple(f"d{at}" for at in range(150, step + 1))


def test_without_a_known_good_generation_a_rollback_is_a_stop() -> None:
    guard = Guard(Policy(nonfinite="rollback"), known_good=lambda step: None)
    with pytest.raises(GuardStopError, match=": stop"):
        steady(guard, range(1), loss_sum=math.nan)
    with pytest.raises(UsageError, match="known_good"):
        Guard(Policy(nonfinite="rollback"))


def test_every_trigger_of_the_detector_has_a_kind() -> None:
    assert {kind_of(trigger) for trigger in get_args(Trigger)} == set(KINDS)


STOPPING = """
from spiketriage.train.guarding.guard import Guard, Policy, exit_with_code
guard = Guard(Policy(max_repeats=2))
with exit_with_code():
    for step in range(9):
        guard.decide(step=step, loss_sum=float("nan"), num_tokens=1)
"""


@pytest.mark.slow
def test_a_stop_is_an_exit_code_of_its_own_and_a_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STOPPING],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    words = (
        "step 1: nonfinite, seen by rank 0, number 2 without progress: stop\n\nhint: "
        "spiketriage triage\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (10, "", words)


@pytest.mark.parametrize(
    "wrong",
    [
        {"drift": "skip"},
        {"outlier": "ignore"},
        {"max_repeats": 0},
        {"warmup_steps": -1},
        {"skips_before_rollback": 0},
    ],
    ids=str,
)
def test_a_policy_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Policy(**wrong)


# State and record
# -------------------------------------------------------------------------------------------------

ODD = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -1.0, 1e300, 30.0, None])
STEPS = st.lists(
    st.fixed_dictionaries(
        {
            "loss_sum": st.one_of(st.floats(1.9, 2.1), st.floats(1.9, 2.1), ODD),
            "grad_norm": st.one_of(st.floats(0.9, 1.1), ODD),
            "attention_max": st.one_of(st.none(), st.floats(5, 6)),
            "loss_scale": st.sampled_from([None, 1024.0, 512.0]),
            "overflow": st.booleans(),
            "update_norm": st.one_of(st.none(), st.floats(0.9e-3, 1.1e-3), ODD),
        }
    ),
    min_size=1,
    max_size=25,
)


def saved_and_restored(guard: Guard) -> Guard:
    state = json.loads(json.dumps(guard.state(), allow_nan=False))
    return Guard(guard.policy, known_good=lambda step: step, state=state)


def drive(guard: Guard, step: int, told: dict[str, Any], saved: str = "") -> tuple[Guard, str]:
    """One step, with a save before it or before `finish`.

    Repr, since NaN is equal to itself there.
    """
    told = dict(told)
    update_norm = told.pop("update_norm")
    guard = saved_and_restored(guard) if saved == "before decide" else guard
    decision = guard.decide(step=step, num_tokens=1, lr=1e-3, ids=[step], **told)
    guard = saved_and_restored(guard) if saved == "before finish" else guard
    late = () if update_norm is None else guard.finish(update_norm=update_norm)
    return guard, repr((decision, late))


@settings(max_examples=40, deadline=None)
@given(
    steps=STEPS,
    at=st.integers(0, 24),
    saved=st.sampled_from(["before decide", "before finish"]),
    warm=st.booleans(),
)
def test_a_guard_that_is_saved_anywhere_decides_on_as_if_it_had_not_been(
    steps: list[dict[str, Any]], at: int, saved: str, warm: bool
) -> None:
    through = Guard(
        Policy(outlier="skip", skips_before_rollback=2, max_repeats=1000),
        known_good=lambda step: step,
    )
    if warm:
        steady(through, range(-80, 0))
    resumed = saved_and_restored(through)
    for step, told in enumerate(steps):
        through, expected = drive(through, step, told)
        resumed, seen = drive(resumed, step, told, saved if step == at else "")
        assert seen == expected
    assert json.dumps(through.state(), allow_nan=False) == json.dumps(
        resumed.state(), allow_nan=False
    )


def test_a_guard_that_is_saved_between_a_skip_and_finish_knows_that_there_was_no_update() -> None:
    guard = Guard(Policy())
    for step in range(100):
        steady(guard, range(step, step + 1))
        guard.finish(update_norm=1e-3)
    assert steady(guard, range(100, 101), loss_sum=math.nan).skip
    assert saved_and_restored(guard).finish(update_norm=math.nan) == ()


@pytest.mark.parametrize(
    "change", [{"schema": 2}, {"detector": {}}, {"accounts": {"n": 1}}, {"row": 3}], ids=str
)
def test_a_state_that_is_none_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(EvidenceError, match="guard state"):
        Guard(Policy(), state={**Guard(Policy()).state(), **change})


def test_decisions_are_recorded(tmp_path: Path) -> None:
    guard = Guard(Policy())
    with Recorder(tmp_path, rank=1, identity=IDENTITY) as recorder:
        with recorder.step(1) as step:
            step.log(steady(guard, range(1, 2), loss_sum=math.nan).metrics())
        path = recorder.path
    metrics = {
        name: value
        for name, value in read_segment(path).steps[0].metrics.items()
        if name.startswith("guard/")
    }
    skip = float(ACTIONS.index("skip"))
    assert metrics == {
        "guard/action": skip,
        "guard/kind": 1.0,
        "guard/skipped": 1.0,
        "guard/repeats": 1.0,
    }
