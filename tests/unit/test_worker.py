"""What a trial worker answers when a job's own loop ends before the trial does."""

from __future__ import annotations

import pytest
from recording import IDENTITY

torch = pytest.importorskip("torch")

from spiketriage.errors import StepNotTakenError  # noqa: E402
from spiketriage.train.generations.rank_state import StateDigests  # noqa: E402
from spiketriage.train.harness import Loaded  # noqa: E402
from spiketriage.train.worker import Station, run_group  # noqa: E402
from spiketriage.wire.trial import Factors, Launch, Trial  # noqa: E402

ENDS_BEFORE = 104


class ShortLoop:
    """A harness whose loop has no step 104, and a new loop for each load."""

    def __init__(self):
        self.taken = []

    def environment(self):
        return IDENTITY

    def load(self, generation, loader):
        self.taken.append([])
        return Loaded(generation="step-000100", step=100, digests=StateDigests(fields={}))

    def ids(self, step):
        return {"step": step}

    def step(self, step, recorder, ids=None):
        if step >= ENDS_BEFORE:
            raise StepNotTakenError(f"the loop ended without having taken step {step}")
        self.taken[-1].append(step)


def trial(last_step, **factors):
    return Trial(
        kind="replay",
        purpose="test",
        factors=Factors(state="step-000100@100", **factors),
        first_step=101,
        last_step=last_step,
    )


def station(folder, trials):
    for one in trials:
        (folder / one.key).mkdir()
    launch = Launch(
        run=str(folder),
        harness="job:factory",
        python_path=(),
        trials_folder=str(folder),
        checkpoints=str(folder),
        trials=tuple(trials),
    )
    return Station(launch=launch, harness=ShortLoop(), rank=0, world_size=1)


def test_a_trial_whose_loop_ends_for_want_of_the_skipped_step_says_so_and_the_others_go_on(
    tmp_path,
):
    skip, plain = trial(105, batch="skip 102"), trial(103)
    place = station(tmp_path, [skip, plain])
    first, second = run_group(place, [skip, plain])
    reason = "without step 102 the loop ended without having taken step 104"
    assert (first.key, first.not_testable) == (skip.key, reason)
    assert (first.num_steps_executed, second.num_steps_executed) == (2, 3)
    assert second.not_testable == ""
    assert place.harness.taken == [[101, 103], [101, 102, 103]]


def test_a_plain_replay_whose_loop_ends_early_is_an_error(tmp_path):
    plain = trial(105)
    with pytest.raises(StepNotTakenError, match="step 104"):
        run_group(station(tmp_path, [plain]), [plain])
