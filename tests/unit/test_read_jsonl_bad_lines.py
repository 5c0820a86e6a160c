"""A line of a JSON log that is no text costs that line, at any place, and is named by number."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import call
from hypothesis import given, settings
from hypothesis import strategies as st

from spiketriage.readers.telemetry.series.names import DEFAULT
from spiketriage.readers.telemetry.tables import jsonl

BAD = {
    "a byte in a key": b'{"st\xffep": 5, "step": 21, "loss": 2.0}',
    "bytes in a value": b'{"step": 21, "loss": 2.0, "msg": "\xff\xfe"}',
    "half a pair as a key": b'{"step": 21, "loss": 2.0, "\\ud800": "x"}',
    "half a pair in a value": b'{"step": 21, "loss": 2.0, "msg": "\\uDC00"}',
    "the bytes of half a pair": b'{"step": 21, "loss": 2.0, "msg": "\xed\xa0\x80"}',
    "a block of zeros": bytes(64),
    "UTF-8 cut in a character": b'{"step": 21, "loss": 2.0, "host": "n\xc3',
    "UTF-16": '{"step": 21, "loss": 2.0}'.encode("utf-16-le"),
    "a thousand brackets": b'{"a":' * 200_000,
}
GOOD = [json.dumps({"step": step, "loss": 2 + step / 100}).encode() for step in range(1, 40)]


def log_with(path: Path, line: bytes, *, number: int) -> Path:
    lines = [*GOOD[: number - 1], line, *GOOD[number - 1 :]]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


@pytest.mark.parametrize("number", [1, 20, 40])
@pytest.mark.parametrize("what", BAD)
def test_only_the_bad_line_is_lost_and_its_number_is_said(
    what: str, number: int, tmp_path: Path
) -> None:
    facts = jsonl.read(log_with(tmp_path / "log.jsonl", BAD[what], number=number), DEFAULT)
    (loss,) = facts.series
    assert loss.steps.tolist() == list(range(1, 40))
    assert loss.values.tolist() == [2 + step / 100 for step in range(1, 40)]
    assert len(facts.problems) == 1
    assert facts.problems[0].startswith(f"line {number} is no JSON object: ")


def test_whole_pairs_are_text(tmp_path: Path) -> None:
    line = b'{"step": 41, "loss": 2.5, "msg": "\\ud83d\\ude00"}'
    facts = jsonl.read(log_with(tmp_path / "log.jsonl", line, number=40), DEFAULT)
    assert facts.problems == ()
    assert facts.series[0].values[-1] == 2.5


def test_inspect_and_freeze_say_which_lines_and_go_on(tmp_path: Path) -> None:
    log_with(tmp_path / "log.jsonl", b"\n".join(BAD.values()), number=20)
    looked = call("inspect", "log.jsonl", cwd=tmp_path)
    assert looked.returncode == 4
    assert "PROBLEM line 20 is no JSON object" in looked.stdout
    assert f"PROBLEM {len(BAD) - 3} more lines are no JSON object" in looked.stdout
    frozen = call("freeze", ".", cwd=tmp_path)
    assert frozen.returncode == 6
    assert "line 20 is no JSON object" in frozen.stdout
    assert "unreadable" not in frozen.stdout


@settings(deadline=None)  # the first example starts the child
@given(st.binary(max_size=60).filter(lambda line: b"\n" not in line), st.integers(1, 40))
def test_whatever_a_line_holds_the_others_are_read(
    tmp_path_factory: pytest.TempPathFactory, line: bytes, number: int
) -> None:
    folder = tmp_path_factory.mktemp("any")
    facts = jsonl.read(log_with(folder / "log.jsonl", line, number=number), DEFAULT)
    assert facts.series[0].values[:39].tolist() == [2 + step / 100 for step in range(1, 40)]
