"""`spiketriage watch`.

What it says of a trace on standard input and of a run that is still being written.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import PROGRAM, ROOT, environment
from hypothesis import given, settings
from hypothesis import strategies as st

from spiketriage.tools import watch


def trace(num: int = 200, **spikes: float) -> list[dict[str, object]]:
    """A healthy run as a trainer logs it; `spikes` are losses by row, as s150=9.0."""
    rng = random.Random(0)
    made: list[dict[str, object]] = []
    for step in range(1, num + 1):
        loss = spikes.get(f"s{step}", 2.5 + 3 * math.exp(-step / 20) + rng.gauss(0, 0.05))
        made.append(
            {"step": step, "loss": loss, "grad_norm": math.exp(rng.gauss(0, 0.1)), "lr": 1e-3}
        )
    return made


def lines(records: list[dict[str, object]]) -> list[bytes]:
    return [json.dumps(record).encode() + b"\n" for record in records]


def read(some: list[bytes]) -> tuple[int, list[tuple[int, str]]]:
    told: list[tuple[int, str]] = []
    code = watch.read(some, lambda alarm: told.append((alarm.step, alarm.signal)))
    return code, told


def test_a_healthy_trace_ends_with_zero_and_nothing_on_stdout() -> None:
    assert read(lines(trace())) == (0, [])


def test_alarm_steps_come_in_order_and_the_exit_code_says_so() -> None:
    assert read(lines(trace(s120=9.0, s180=7.0))) == (1, [(120, "loss"), (180, "loss")])


@pytest.mark.parametrize("written", ["NaN", '"NaN"', '"nan"', "Infinity", '"-inf"', '"Infinity"'])
def test_nonfinite_values_are_understood_bare_and_as_strings(written: str) -> None:
    assert read(
        [b'{"step": 1, "loss": 3.0}\n', f'{{"step": 2, "loss": {written}}}\n'.encode()]
    ) == (1, [(2, "loss")])


def test_what_other_loggers_call_it_is_understood() -> None:
    record = {
        "train/global_step": 7,
        "train/loss": "NaN",
        "train/grad_norm": 1.0,
        "train/learning_rate": 1e-4,
    }
    assert read(lines([record])) == (1, [(7, "loss")])


def test_evaluation_rows_are_passed_over_and_a_vanished_loss_is_not() -> None:
    records = trace(60)
    records.insert(50, {"step": 50, "eval_loss": 2.0})
    assert read(lines(records)) == (0, [])
    gone = {"step": 61, "grad_norm": 1.0, "lr": 1e-3}
    assert read(lines([*records, gone])) == (1, [(61, "loss")])
    assert read(lines([*records, gone | {"loss": None}])) == (1, [(61, "loss")])


def test_bad_lines_are_counted_and_named_and_never_fatal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bad = [
        b"garbage\n",
        b"[1]\n",
        b'{"loss": 2}\n',
        b'{"step": 1, "loss": [1]}\n',
        b"\xff\xfe\n",
        b'{"step": 1.5}\n',
    ]
    code, told = read([*bad, b"[" * 100_000 + b"\n", *lines(trace(s120=9.0))])
    assert (code, told) == (1, [(120, "loss")])
    said = capsys.readouterr().err
    assert "line 1 is passed over: not JSON" in said
    assert "line 3 is passed over: expected a step" in said
    assert "7 lines could not be read" in said


@settings(max_examples=200, deadline=None)
@given(line=st.one_of(st.binary(max_size=60), st.dictionaries(
    st.sampled_from(["step", "loss", "grad_norm", "lr", "loss_scale", "skipped", "x"]),
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.integers())),
).map(lambda record: json.dumps(record).encode())))  # fmt: skip
def test_no_line_is_fatal(line: bytes) -> None:
    told: list[int] = []
    code = watch.read([line, line], lambda alarm: told.append(alarm.step))
    assert code == int(bool(told))


def test_a_log_that_grows_is_followed_and_no_step_is_judged_twice(tmp_path: Path) -> None:
    path, whole = tmp_path / "log.jsonl", lines(trace(s120=9.0, s200=9.0))
    path.write_bytes(b"".join(whole[:100]))

    def looks() -> Iterator[None]:
        for upto in (130, 130, 199, 200):
            yield
            path.write_bytes(
                b"".join(whole[:upto]) + whole[upto][:7] if upto < 200 else b"".join(whole)
            )
        yield

    told: list[int] = []
    before = sorted(tmp_path.iterdir())
    assert watch.follow(path, lambda alarm: told.append(alarm.step), looks=looks()) == 1
    assert told == [120, 200]
    assert sorted(tmp_path.iterdir()) == before


def test_a_spike_that_was_rolled_back_is_said_and_is_no_alarm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = trace(180, s150=9.0), trace(200)
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"".join(lines([*first, *second[120:]])))
    told: list[int] = []
    code = watch.follow(path, lambda alarm: told.append(alarm.step), looks=iter([None]))
    assert (code, told) == (0, [])
    said = capsys.readouterr().err
    assert "history: attempt 0: steps 121 to 180 were rolled back; step 150: loss 9 is" in said
    assert "attempt 1 took it again and did not spike there" in said


def _start(*words: str, **more: object) -> subprocess.Popen[str]:
    def hear() -> None:  # a test command started in the background hands an ignored SIGINT down
        signal.signal(signal.SIGINT, signal.default_int_handler)

    command = [sys.executable, "-c", PROGRAM, "watch", *words]
    pipes = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "env": environment(),
    }
    return subprocess.Popen(command, text=True, cwd=ROOT, preexec_fn=hear, **{**pipes, **more})  # type: ignore[call-overload,no-any-return]


def test_an_alarm_is_printed_while_the_pipe_is_still_open() -> None:
    with _start("--stdin", "--json") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("".join(line.decode() for line in lines(trace(s120=9.0)[:120])))
        process.stdin.flush()
        alarm = json.loads(process.stdout.readline())
        assert process.poll() is None
        process.stdin.close()
        assert process.wait(60) == 1
    assert (alarm["step"], alarm["signal"], alarm["trigger"]) == (120, "loss", "band")
    assert alarm["value"] == 9.0


def test_a_run_is_followed_until_interrupted(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    path, whole = run / "log.jsonl", lines(trace(s120=9.0))
    path.write_bytes(b"".join(whole[:110]))
    with _start(str(run)) as process:
        assert process.stdout is not None
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        with path.open("ab") as file:
            file.writelines(whole[110:])
        said = process.stdout.readline()
        os.kill(process.pid, signal.SIGINT)
        code = process.wait(60)
        watchdog.cancel()
    assert said.startswith("step 120: loss 9 is")
    assert code == 1
    assert [one.name for one in run.iterdir()] == ["log.jsonl"]
