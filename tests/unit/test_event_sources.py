"""What all readers of system evidence owe.

One owner a file, bounded reading, and no error but ours.
"""

import os
import random
from pathlib import Path

import event_logs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spiketriage.errors import EvidenceError
from spiketriage.nouns.telemetry import EventFacts
from spiketriage.readers.events import text_lines
from spiketriage.readers.events.sources import SOURCES
from spiketriage.readers.look import best, look

FIXTURES = Path(__file__).parents[2] / "fixtures" / "events"
GOOD = {
    "kernel-log": event_logs.DMESG.encode()
    + event_logs.JOURNAL.encode()
    + event_logs.SHORT_ISO.encode(),
    "nccl-log": event_logs.NCCL.encode(),
    "torchrun-error": event_logs.TORCHRUN.encode(),
    "slurm": event_logs.SLURM.encode(),
    "flight-recorder": (FIXTURES / "fr_desync" / "trace_rank_0").read_bytes(),
    "nvidia-smi": (FIXTURES / "nvidia_smi.xml").read_bytes(),
}
READERS = {source.NAME: source for source in SOURCES}


def answer(source, path):
    """The facts of a file, or the sentence of an error of ours; any other error is not caught."""
    assert 0.0 <= source.claims(look(path)) <= 1.0
    try:
        return source.read(path)
    except EvidenceError as error:
        return error.message


def is_told(found):
    return isinstance(found, EventFacts) or bool(found)


@pytest.mark.parametrize("name", sorted(GOOD))
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_truncation_and_flip_gives_facts_or_a_sentence(tmp_path, name, data):
    good = GOOD[name]
    cut = data.draw(st.integers(0, len(good)))
    torn = bytearray(good[:cut])
    for _ in range(data.draw(st.integers(0, 3))) if torn else ():
        torn[data.draw(st.integers(0, len(torn) - 1))] ^= data.draw(st.integers(1, 255))
    path = tmp_path / "evidence_0"
    path.write_bytes(torn)
    assert is_told(answer(READERS[name], path))


@pytest.mark.parametrize("name", sorted(READERS))
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(content=st.one_of(st.binary(max_size=400), st.sampled_from(sorted(GOOD.values()))))
def test_a_reader_survives_what_is_not_its_own(tmp_path, name, content):
    path = tmp_path / "evidence_0"
    path.write_bytes(content)
    assert is_told(answer(READERS[name], path))


@pytest.mark.parametrize("name", sorted(READERS))
def test_garbage(tmp_path, name):
    path = tmp_path / "garbage_0"
    num_megabytes = (
        10 if name in ("job-log", "flight-recorder", "nvidia-smi") else 1
    )  # job-log runs most of the others
    path.write_bytes(random.Random(3).randbytes(num_megabytes << 20))
    assert is_told(answer(READERS[name], path))


@pytest.mark.parametrize("name", sorted(READERS))
def test_lfs_pointers_folders_pipes_and_absent_files_are_refused(tmp_path, name):
    reader = READERS[name]
    pointer = tmp_path / "pointer"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    assert reader.claims(look(pointer)) == 0.0
    assert reader.claims(look(tmp_path)) == 0.0
    with pytest.raises(EvidenceError, match="never fetched") as caught:
        reader.read(pointer)
    assert caught.value.hint == "git lfs pull"
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "absent"):
        with pytest.raises(EvidenceError):
            reader.read(path)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("flight-recorder", "fr_desync/trace_rank_1"),
        ("flight-recorder", "fr_desync_json/trace_rank_1.json"),
        ("nvidia-smi", "nvidia_smi.xml"),
        ("slurm", "sacct.json"),
        ("slurm", "scontrol.txt"),
        ("torchrun-error", "error.json"),
    ],
)
def test_every_fixture_has_one_owner(name, file):
    source, confidence = best(SOURCES, look(FIXTURES / file))
    assert name == source.NAME
    assert confidence >= 0.9


def test_names_are_unique_and_say_what_they_can_and_cannot():
    assert len(READERS) == len(SOURCES)
    for source in SOURCES:
        assert source.NAME.lower() == source.NAME
        assert source.TELLS.endswith(".")
        assert source.CANNOT.endswith(".")


def test_a_line_longer_than_a_piece_keeps_its_number_and_is_said(tmp_path):
    path = tmp_path / "long.log"
    path.write_bytes(b"first\n" + b"x" * 200_000 + b"\nlast\r\rbar\n\nend")
    damage = text_lines.Damage()
    told = [(line.number, len(line.text)) for line in text_lines.lines(path, damage)]
    assert told[0] == (1, 5)
    assert {number for number, _ in told[1:-3]} == {2}
    assert sum(length for number, length in told if number == 2) == 200_000
    assert told[-3:] == [(3, 4), (3, 3), (5, 3)]
    assert any("longer than" in sentence for sentence in damage.sentences("long.log"))


def test_events_beyond_the_bound_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(text_lines, "MAX_EVENTS", 10)
    path = tmp_path / "dmesg"
    path.write_text("[    1.000000] NVRM: Xid (PCI:0000:01:00): 79, off\n" * 25)
    facts = READERS["kernel-log"].read(path)
    assert len(facts.events) == 10
    assert any("15 more" in problem for problem in facts.problems)
