"""Where a log that goes on in one file was written by more than one attempt of its run."""

import json
import math

import pytest

from spiketriage.evidence.onset import find_onset
from spiketriage.readers.telemetry.run.sources import read_telemetry


def loss(step):
    return 3.0 - 0.005 * step + 0.02 * math.sin(7.0 * step)


def telemetry(folder, rows):
    lines = [json.dumps({"step": step, "loss": value}) for step, value in rows]
    (folder / "train.jsonl").write_text("\n".join(lines) + "\n")
    return read_telemetry(folder)


def attempts(telemetry):
    firsts = {}
    for segment in telemetry.segments:
        firsts[segment.attempt] = segment.columns.steps[0]
    return firsts


def rows(*spans):
    return [(step, loss(step)) for first, last in spans for step in range(first, last + 1)]


def test_a_step_that_stands_twice_in_a_log_that_goes_on_is_a_restart(tmp_path):
    run = telemetry(tmp_path, rows((1, 41), (41, 80)))
    assert attempts(run) == {0: 1, 1: 41}
    assert find_onset(run).history == ("attempt 0: step 41 was rolled back; nothing spiked there",)


def test_a_jump_at_the_repeated_step_says_first_that_it_lies_behind_a_restart(tmp_path):
    jumped = [(step, value + 3 * (step == 41)) for step, value in rows((41, 80))]
    onset = find_onset(telemetry(tmp_path, rows((1, 41)) + jumped))
    assert onset.step == 41
    assert onset.reason.startswith("step 41: 1 step after a restart from 40, ")


def test_a_job_that_dies_twice_at_one_step_has_three_attempts(tmp_path):
    run = telemetry(tmp_path, rows((1, 41), (41, 41), (41, 80)))
    assert attempts(run) == {0: 1, 1: 41, 2: 41}


@pytest.mark.parametrize(
    "spans",
    [
        pytest.param([(1, 60), (60, 60)], id="the last step once more as the trainer ends"),
        pytest.param([(1, 1), (1, 60)], id="an evaluation before the first step"),
        pytest.param([(s, s) for s in range(1, 61) for _ in range(2)], id="two rows a step"),
        pytest.param(
            [(10 * n - 9 - (n > 1), 10 * n) for n in range(1, 7)], id="an evaluation every ten"
        ),
    ],
)
def test_rows_that_repeat_a_step_for_another_reason_are_no_restart(tmp_path, spans):
    assert attempts(telemetry(tmp_path, rows(*spans))) == {0: 1}


def test_a_spike_that_was_rolled_back_says_whether_it_came_again(tmp_path):
    def run(name, second):
        folder = tmp_path / name
        folder.mkdir()
        first = [(step, value + 9 * (step == 150)) for step, value in rows((1, 180))]
        return find_onset(telemetry(folder, first + second)).history[0]

    assert run("healed", rows((121, 300))).endswith(
        "; attempt 1 took it again and did not spike there"
    )
    again = [(step, value + 9 * (step == 150)) for step, value in rows((121, 300))]
    assert run("again", again).endswith("; attempt 1 took it again and spiked there too")
    assert "took it again" not in run("elsewhere", rows((121, 140)))


def test_a_spike_of_another_run_is_never_said_to_have_been_taken_again(tmp_path):
    first = [(step, value + 9 * (step == 150)) for step, value in rows((1, 180))]
    onset = find_onset(telemetry(tmp_path, first + rows((1, 300))))
    (history,) = onset.history
    assert "a later attempt starts over; step 150: loss " in history
    assert "took it again" not in history
    assert onset.reason.endswith("(a later attempt started over from the first step)")
