"""A run of which only events are left is an incident, and a fatal event is the onset of a quiet run.

The commands are the real ones; the logs are made up here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spiketriage.errors import EvidenceError
from spiketriage.runbook import check, freeze, status, triage
from spiketriage.tools import inspect

WATCHDOG = (
    "[rank7]:[E1003 18:37:01.832146912 ProcessGroupNCCL.cpp:607] [Rank 7] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=63, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
    "Timeout(ms)=1800000) ran for 1800017 milliseconds before timing out.\n"
)
TRACEBACK = (
    'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    loop()\n'
    "RuntimeError: the mask of sample 7 is empty\n"
)
ASSERTION = (
    "AssertionError: Rank 21: found NaN in local forward loss calculation. Device: 5, node: gpu7\n"
)
OUT_OF_MEMORY = (
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a "
    "total capacity of 79.15 GiB\n"
)
BUS = (
    "[ 1850.000002] NVRM: Xid (PCI:0000:19:00): 79, pid=4242, name=python, GPU has fallen off the "
    "bus.\n"
)
# What happened, in a file of which name, and what must be said of it.
KINDS = {
    "hang": (WATCHDOG, "job.log", ("collective-timeout", "rank 7")),
    "traceback": (TRACEBACK, "stderr", ("the mask of sample 7 is empty", "line 9")),
    "assertion": (ASSERTION, "assert.txt", ("nan-assertion", "rank 21", "gpu7", "cuda:5")),
    "memory": (OUT_OF_MEMORY, "node-1.err", ("out-of-memory", "rank 3", "cuda:3")),
    "device": (BUS, "dmesg.log", ("Xid 79", "0000:19:00")),
}
CHATTER = "".join(f"worker {number} says hello to its neighbours\n" for number in range(9000))


def run_of(folder: Path, text: str, name: str = "job.log") -> Path:
    folder.mkdir(parents=True)
    (folder / name).write_text(text, encoding="utf-8")
    return folder


def typed(command: Any, run: Path) -> Any:
    return command.run(run, incidents=None, incident=None, argv=["spiketriage", "x", str(run)])


def text_of(result: Any) -> str:
    return "\n".join(result.lines)


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_with_events_alone_is_frozen_and_its_worst_event_named(
    kind: str, tmp_path: Path
) -> None:
    text, name, words = KINDS[kind]
    run = run_of(tmp_path / "a run", text, name)
    frozen = typed(freeze, run)
    assert (frozen.exit_code, frozen.verdict, frozen.data["onset"]) == (6, "partial", None)
    checked = typed(check, run)
    assert checked.exit_code == 1
    (finding,) = [row for row in checked.data["findings"] if row["outcome"] == "differs"]
    assert finding["judged"]
    said = (text_of(frozen), text_of(checked), text_of(typed(status, run)), finding["summary"])
    for word in words:
        assert all(word in one for one in (*said, text_of(inspect.run(run))))
    assert not any("nothing spiked" in one for one in said)


@pytest.mark.parametrize("kind", KINDS)
def test_triage_of_events_alone_ends_with_a_report_and_no_verdict(
    kind: str, tmp_path: Path
) -> None:
    text, name, words = KINDS[kind]
    run = run_of(tmp_path / "run", text, name)
    result = typed(triage, run)
    assert (result.exit_code, result.verdict) == (5, "not weighed")
    assert "no step is recorded" in result.lines[0]
    assert result.next_commands[0].startswith("spiketriage verify")
    written = (run / ".spiketriage/incidents" / result.incident / "report/report.md").read_text()
    assert words[0] in written
    assert "nothing spiked" not in written.lower()


@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_the_event_may_stand_anywhere_in_a_file_of_other_lines(place: str, tmp_path: Path) -> None:
    parts = {
        "first": (TRACEBACK, CHATTER),
        "middle": (CHATTER, TRACEBACK, CHATTER),
        "last": (CHATTER, TRACEBACK),
    }
    run = run_of(tmp_path / "run", "".join(parts[place]), "job.out")
    assert "the mask of sample 7 is empty" in text_of(typed(freeze, run))


def test_a_folder_of_words_is_no_run(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", CHATTER, "job.out")
    with pytest.raises(EvidenceError, match="is not a run folder"):
        typed(freeze, run)


def quiet(num: int) -> str:
    return "".join(f"step {n} | loss {3 - n / 1000:.4f} | lr 1e-4\n" for n in range(1, num + 1))


@pytest.mark.parametrize("end", [TRACEBACK, ASSERTION, OUT_OF_MEMORY])
def test_a_fatal_event_is_the_onset_of_a_quiet_run_at_its_own_step(
    end: str, tmp_path: Path
) -> None:
    run = run_of(tmp_path / "run", quiet(120) + end)
    result = typed(freeze, run)
    assert result.data["onset"] == result.data["suspect"] == 120
    assert end.split(":")[-1].strip() in result.data["reason"]
    assert "nothing spiked" not in text_of(result)
    assert f"step {120} is the suspect" not in text_of(typed(check, run))
    assert typed(freeze, run).incident == result.incident


def test_an_event_that_names_no_step_dates_the_last_recorded_one_and_says_so(
    tmp_path: Path,
) -> None:
    run = run_of(tmp_path / "run", quiet(90), "metrics.log")
    (run / "dmesg.log").write_text(BUS, encoding="utf-8")
    result = typed(freeze, run)
    assert result.data["onset"] == 90
    assert "step 90: the last recorded step before fatal xid" in result.data["reason"]


def test_a_spike_comes_before_an_event_and_a_given_step_before_both(tmp_path: Path) -> None:
    spiked = quiet(120).replace("step 80 | loss 2.9200", "step 80 | loss 90.0")
    run = run_of(tmp_path / "run", spiked + TRACEBACK)
    result = typed(freeze, run)
    assert result.data["onset"] == 80
    assert "the mask of sample 7 is empty" in text_of(typed(check, run))
    given = freeze.run(run, incidents=None, incident=None, argv=["spiketriage"], step=60)
    assert given.data["reason"] == "step 60 was given with --step"


def test_what_a_run_outlived_is_no_onset(tmp_path: Path) -> None:
    later = "".join(f"step {n} | loss 2.8 | lr 1e-4\n" for n in range(121, 140))
    result = typed(freeze, run_of(tmp_path / "run", quiet(120) + TRACEBACK + later))
    assert result.data["onset"] is None
    assert "nothing spiked" in text_of(result)


def test_inspect_shows_the_fatal_event_of_a_log_that_a_trainer_s_reader_claims(
    tmp_path: Path,
) -> None:
    line = (
        " iteration        1/    5000 | consumed samples:          128 | elapsed time per "
        "iteration (ms): 140.2 | learning rate: 5.0E-08 | global batch size:   128 | lm loss: "
        "1.19E+01 | loss scale: 1.0 | grad norm: nan | number of skipped iterations:   0 | number "
        "of nan iterations:   0 |\n"
    )
    run = run_of(tmp_path / "run", line + ASSERTION)
    for path in (run, run / "job.log"):
        text = text_of(inspect.run(path))
        assert "telemetry: megatron-stdout" in text
        assert "fatal nan-assertion rank 21 step 1 (gpu7 cuda:5)" in text
