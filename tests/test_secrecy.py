"""Nothing tells the desk what was planted.

Not the run folder, not a process, not the desk's own code.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rehearsed import Rehearsed

import spiketriage
from spiketriage.practice.rehearsal.faults import FAULTS

PACKAGE = Path(spiketriage.__file__).parent
WORD = "healthy"  # an ordinary word: prose may say it, a name or a setting may not
NAMES = [fault.NAME for fault in FAULTS]
TELLING = [name.replace("-", mark).encode() for name in NAMES if name != WORD for mark in "-_ "]
DESK = ("diagnosis", "runbook", "readers", "incident", "report", "train", "wire")

pytestmark = pytest.mark.slow


def telling(text: bytes) -> list[bytes]:
    """The names of faults in `text`, however they are spelled."""
    spelled = text.lower()
    return [name for name in TELLING if name in spelled]


@pytest.fixture(params=["bitrot_run", "flip_run"])
def run(request: pytest.FixtureRequest) -> Rehearsed:
    found: Rehearsed = request.getfixturevalue(request.param)
    return found


def test_no_file_of_a_run_names_a_fault_by_its_name_or_content(run: Rehearsed) -> None:
    files = [path for path in run.folder.rglob("*") if path.is_file()]
    assert len(files) > 100
    for path in files:
        data = path.read_bytes()
        assert telling(data) == [], path
        assert path.suffix == ".bin" or WORD.encode() not in data.lower(), path
    for path in run.folder.rglob("*"):
        name = path.relative_to(run.folder).as_posix().encode()
        assert telling(name) == [], path
        assert WORD.encode() not in name.lower(), path


def test_no_process_of_a_rehearsal_names_a_fault(run: Rehearsed) -> None:
    starts = {one.argv for one in run.told if b"torch.distributed.run" in one.argv}
    workers = [
        one
        for one in run.told
        if any(word.startswith(b"RANK=") for word in one.environ.split(b"\0"))
    ]
    assert starts
    assert len(workers) >= 4  # two ranks in two attempts were watched
    for one in run.told:
        for text in (one.argv, one.environ):
            assert telling(text) == [], text
            assert WORD.encode() not in text.lower(), text


def test_nothing_of_the_stage_is_left_beside_the_run(run: Rehearsed) -> None:
    kept = {path.name for path in run.folder.parent.iterdir()}
    assert kept <= {"run", "rehearse.log"}
    names = {path.name for path in run.folder.rglob("*")}
    assert names.isdisjoint({"entry.py", "fate.json", "hook.py"})


def test_the_two_releases_differ_in_code_in_every_run(run: Rehearsed) -> None:
    first, second = (run.folder / "code" / release / "trainer" for release in ("r1", "r2"))
    differing = [
        path.name
        for path in first.iterdir()
        if path.read_bytes() != (second / path.name).read_bytes()
    ]
    assert len(differing) == 1  # neither of these faults lies in code: it is the harmless change
    assert {path.name for path in first.iterdir()} == {path.name for path in second.iterdir()}


@pytest.mark.parametrize("package", DESK)
def test_no_source_of_the_desk_knows_the_rehearsal(package: str) -> None:
    sources = sorted((PACKAGE / package).rglob("*.py"))
    assert sources
    said = re.compile(
        r"rehears(?!e\b)|practice|planted", re.IGNORECASE
    )  # `rehearse` is a command that may be named
    found = [
        (path.name, match.group())
        for path in sources
        for match in said.finditer(path.read_text("utf-8"))
    ]
    assert found == []
