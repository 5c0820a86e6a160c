"""What every reader owes.

A member of a tuple of formats is tested by being listed, on the fixture that it claims best.

It never lists a format or a fixture by name.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import hostile_files
import numpy as np
import pytest
from command_line import ROOT, call

import spiketriage
from spiketriage.errors import EvidenceError, RefusedError
from spiketriage.nouns.checkpoint import CheckpointFacts
from spiketriage.nouns.data import DataFacts
from spiketriage.nouns.series import LogFacts
from spiketriage.nouns.telemetry import EventFacts
from spiketriage.readers.discover import CONVINCED, Claim, claims_on, kinds
from spiketriage.readers.look import look
from spiketriage.readers.telemetry.series.names import DEFAULT
from spiketriage.tools import inspect

READERS = Path(spiketriage.__file__).parent / "readers"
FOLDERS = {
    "checkpoint": "checkpoints",
    "telemetry": "telemetry",
    "events": "events",
    "data": "data",
}
FACTS = {
    "checkpoint": CheckpointFacts,
    "telemetry": LogFacts,
    "events": EventFacts,
    "data": DataFacts,
}
MEMBERS: dict[str, tuple[str, Any]] = {
    f"{kind}:{member.NAME}": (kind, member)
    for kind, formats in kinds().items()
    for member in formats
}
OWN_RUN = {"native_index"}  # the index of our own shards is named by settings and never claimed
LONGEST_S = 20
MAX_SENTENCE = 1500
MAX_TOLD = 130


@cache
def fixture_claims() -> Mapping[Path, tuple[Claim, ...]]:
    """Every path below `fixtures/` that somebody claims, with its claims, the surest first."""
    paths = [
        path for path in sorted((ROOT / "fixtures").rglob("*")) if "__pycache__" not in path.parts
    ]
    return {path: claims for path in paths if (claims := claims_on(look(path)))}


@cache
def fixture_of(name: str) -> tuple[Path, ...]:
    """The fixtures that a member claims best: the smallest file and the smallest folder."""
    best = {
        path: claims[0]
        for path, claims in fixture_claims().items()
        if claims[0].confidence >= CONVINCED
    }
    own = [path for path, claim in best.items() if claim.format is MEMBERS[name][1]]
    found = []
    for is_folder in (False, True):
        alike = [path for path in own if path.is_dir() == is_folder]
        found += sorted(alike, key=size_bytes)[:1]
    return tuple(found)


def size_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in hostile_files.files_below(path))


def read(name: str, path: Path) -> Any:
    kind, member = MEMBERS[name]
    return member.read(path, DEFAULT) if kind == "telemetry" else member.read(path)


def spelled(value: object) -> object:
    """Facts as something that can be compared: NaN is NaN, arrays are their bytes."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: spelled(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, Mapping):
        return {key: spelled(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [spelled(one) for one in value]
    return repr(value)


@pytest.fixture(autouse=True)
def _nothing_waits(tmp_path: Path) -> Iterator[None]:
    """A reader that opens a pipe would wait for ever: that is a failure, not a hang."""

    def blocked(*_: object) -> None:
        for path in tmp_path.rglob("*"):
            if (
                path.is_fifo()
            ):  # whoever waits for a writer, in a thread maybe, gets one and goes on
                with suppress(OSError):
                    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        pytest.fail("waited for a pipe, or for far too long")

    before = signal.signal(signal.SIGALRM, blocked)
    signal.alarm(LONGEST_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", FOLDERS)
def test_each_file_that_has_a_name_is_a_member(kind: str) -> None:
    files = {
        path.stem
        for path in (READERS / FOLDERS[kind]).rglob("*.py")
        if re.search(r"^NAME\b", path.read_text(encoding="utf-8"), re.MULTILINE)
        and path.stem not in OWN_RUN
    }
    members = {member.__name__.rpartition(".")[2] for member in kinds()[kind]}  # type: ignore[index,attr-defined]
    assert members == files


@pytest.mark.parametrize("kind", FOLDERS)
def test_names_are_unique_and_spelled_alike(kind: str) -> None:
    names = [member.NAME for member in kinds()[kind]]  # type: ignore[index]
    assert len(names) == len(set(names)) > 1
    assert [name for name in names if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name)] == []


@pytest.mark.parametrize("name", MEMBERS)
def test_each_says_in_one_sentence_what_it_tells_and_what_it_cannot(name: str) -> None:
    member = MEMBERS[name][1]
    assert isinstance(member, ModuleType)
    for sentence in (member.TELLS, member.CANNOT):
        assert sentence[0].isupper() or sentence[0].isdigit() or sentence[0] == "`"
        assert sentence.endswith(".")
        assert sentence.count(". ") == 0
        assert "|" not in sentence
        assert "\n" not in sentence
        assert 20 <= len(sentence) <= MAX_TOLD, sentence
    told = [sentence for _, other in MEMBERS.values() for sentence in (other.TELLS, other.CANNOT)]
    assert told.count(member.TELLS) == told.count(member.CANNOT) == 1


@pytest.mark.parametrize("name", MEMBERS)
def test_each_has_a_fixture_that_it_reads_the_same_way_twice(name: str) -> None:
    kind, member = MEMBERS[name]
    assert fixture_of(name), f"no path below fixtures/ is claimed best by {member.NAME}"
    for path in fixture_of(name):
        facts = read(name, path)
        assert isinstance(facts, FACTS[kind])
        assert (facts.layout if isinstance(facts, CheckpointFacts) else facts.format) == member.NAME
        assert facts.path in (path, path.parent)
        assert spelled(facts) == spelled(read(name, path))
        result = inspect.run(path)
        assert result.exit_code in (0, 4)
        assert result.lines[0].startswith(f"{path}: ")
        assert f"{kind}: {member.NAME} " in "\n".join(result.lines)


def test_no_two_are_equally_sure_of_a_fixture() -> None:
    tied = {
        path: [one.format.NAME for one in claims[:3]]
        for path, claims in fixture_claims().items()
        if len(claims) > 1 and claims[0].confidence == claims[1].confidence
    }
    assert tied == {}


def test_claims_are_between_nothing_and_certainty() -> None:
    seen = [claim for claims in fixture_claims().values() for claim in claims]
    assert [claim for claim in seen if not 0 < claim.confidence < 1] == []


@dataclass(frozen=True, slots=True, kw_only=True)
class Hostile:
    """A changed copy of a fixture and what was done to it."""

    path: Path
    what: str
    is_lost: bool = False


def hostile(name: str, folder: Path) -> Iterator[Hostile]:
    """Every change of every fixture of a member, each on a fresh copy."""
    number = 0
    for fixture in fixture_of(name):
        kept = folder / "kept" / fixture.name
        (shutil.copytree if fixture.is_dir() else shutil.copy)(fixture, prepared(kept))
        num_sets = len(hostile_files.targets(kept))
        for what, change in hostile_files.FILE_CHANGES.items():
            for at in range(num_sets):
                number += 1
                path = folder / str(number) / fixture.name
                (shutil.copytree if fixture.is_dir() else shutil.copy)(fixture, prepared(path))
                files = hostile_files.targets(path)[at]
                for file in files:
                    change(file)
                told = f"{fixture.name}: {what} of {[file.name for file in files]}"
                yield Hostile(
                    path=path, what=told, is_lost=fixture.is_file() and what in hostile_files.LOST
                )
        for what, change in hostile_files.FOLDER_CHANGES.items() if fixture.is_dir() else ():
            number += 1
            path = folder / str(number) / fixture.name
            shutil.copytree(fixture, prepared(path))
            change(path)
            yield Hostile(path=path, what=f"{fixture.name}: {what}")


def prepared(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def assert_sentence(text: str, what: str) -> None:
    assert text.strip(), what
    assert "\n" not in text, (what, text)
    assert len(text) <= MAX_SENTENCE, (what, len(text), text[:200])


@pytest.mark.parametrize("name", MEMBERS)
def test_hostile_copies_give_facts_or_one_sentence(name: str, tmp_path: Path) -> None:
    kind, member = MEMBERS[name]
    for one in hostile(name, tmp_path):
        try:
            facts = read(name, one.path)
        except EvidenceError as error:
            assert_sentence(error.message, one.what)
        else:
            assert isinstance(facts, FACTS[kind]), one.what
            for sentence in (*facts.problems, *facts.notes):
                assert_sentence(sentence, one.what)
        if kind == "data":
            documents(member, one)
        try:
            result = inspect.run(one.path)
        except EvidenceError as error:
            assert_sentence(error.message, one.what)
            continue
        assert result.exit_code in ((4, 5) if one.is_lost else (0, 4, 5)), one.what
        for line in result.lines:
            assert_sentence(line, one.what)
        json.dumps(result.data, allow_nan=False)


def documents(store: Any, one: Hostile) -> None:
    for ask in (
        store.count,
        lambda path: store.document(path, 0),
        lambda path: store.stored(path, 1, eos=3),
    ):
        try:
            ask(one.path)
        except (EvidenceError, RefusedError) as error:
            assert_sentence(error.message, one.what)


def test_claims_on_hostile_paths_are_numbers(tmp_path: Path) -> None:
    for number, name in enumerate(MEMBERS):
        if number % 6 == 0:  # every member looks at each of these: a part of the zoo is plenty
            for one in hostile(name, tmp_path / str(number)):
                try:
                    seen = look(one.path)
                except EvidenceError as error:
                    assert_sentence(error.message, one.what)
                    continue
                confidences = {other.NAME: other.claims(seen) for _, other in MEMBERS.values()}
                assert [told for told in confidences.items() if not 0 <= told[1] <= 1] == []


@pytest.mark.parametrize("member", list(MEMBERS)[:: len(MEMBERS) // 3])
def test_the_command_line_says_one_sentence_on_a_damaged_copy(member: str, tmp_path: Path) -> None:
    copies = {one.what: one.path for one in hostile(member, tmp_path)}
    chosen = [
        path for what, path in copies.items() if re.search("odd-name|own-link|other-bytes", what)
    ]
    for path in chosen[-2:]:
        done = call("inspect", str(path), cwd=tmp_path)
        assert done.returncode in (0, 4, 5), done.stderr
        assert done.stdout or done.stderr
        assert "bug" not in done.stderr


def test_the_command_line_survives_names_that_are_no_text(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff\xfe.jsonl")
    (tmp_path / name).write_text('{"step": 1, "loss": 2.0}\n', encoding="utf-8")
    for words, spelling in (
        ((name,), "\\xff\\xfe.jsonl"),
        (("--json", name), "\\udcff\\udcfe.jsonl"),
    ):
        done = call("inspect", *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert spelling in done.stdout
    done = call("inspect", name + "x", cwd=tmp_path)
    assert done.returncode == 4
    assert "\\xff\\xfe.jsonlx" in done.stderr


NOBODY = 65534  # root reads what nobody may


@pytest.mark.parametrize("name", MEMBERS)
def test_files_that_may_not_be_read_give_one_sentence(name: str) -> None:
    with tempfile.TemporaryDirectory() as open_folder:
        os.chmod(open_folder, 0o755)
        for fixture in fixture_of(name):
            path = Path(open_folder) / fixture.name
            (shutil.copytree if fixture.is_dir() else shutil.copy)(fixture, path)
            for file in hostile_files.files_below(path):
                file.chmod(0)
            told: list[str] = []
            with as_nobody():
                for ask in (lambda where: read(name, where), inspect.run):
                    try:
                        ask(path)
                    except EvidenceError as error:
                        told.append(error.message)
            for sentence in told:
                assert_sentence(sentence, name)
            assert told or fixture.is_dir()


@contextmanager
def as_nobody() -> Iterator[None]:
    """Give up the right to read everything, for a while, where the tests run as root."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


if sys.platform != "linux":  # pragma: no cover
    pytestmark = pytest.mark.skip(reason="pipes and links as Linux has them")
