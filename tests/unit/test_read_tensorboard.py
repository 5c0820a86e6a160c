"""TensorBoard event files.

Every point, equal to TensorBoard's own reader, whatever happened to the file.
"""

from __future__ import annotations

import math
import random
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from telemetry_files import FIXTURES, LFS_POINTER, loss, one

from spiketriage.errors import EvidenceError
from spiketriage.nouns.series import LogFacts, Rollback
from spiketriage.readers.look import look
from spiketriage.readers.telemetry.series.names import DEFAULT
from spiketriage.readers.telemetry.stores import crc32c, tensorboard

RUN = FIXTURES / "tensorboard"
FIRST = RUN / "events.out.tfevents.1700000000.host.1.0"


def read(path: Path) -> LogFacts:
    return tensorboard.read(path, DEFAULT)


def frame(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    return b"".join(
        part + struct.pack("<I", crc32c.masked_of_bytes(part)) for part in (length, content)
    )


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def scalar(tag: str, step: int, value: float, time_s: float = 1.0) -> bytes:
    """An event as protobuf lays it out, fields that are zero left out."""
    body = b"\x0a" + varint(len(tag)) + tag.encode() + b"\x15" + struct.pack("<f", value)
    summary = b"\x0a" + varint(len(body)) + body
    event = (b"\x09" + struct.pack("<d", time_s)) if time_s else b""
    event += (b"\x10" + varint(step)) if step else b""
    return event + b"\x2a" + varint(len(summary)) + summary


def write(path: Path, events: list[bytes]) -> Path:
    path.write_bytes(b"".join(frame(event) for event in [b"\x1a\x0dbrain.Event:2", *events]))
    return path


def test_crc32c_matches_the_published_check_value() -> None:
    assert crc32c.of_bytes(b"123456789") == 0xE3069283
    long = bytes(random.Random(1).randbytes(3000))
    halves = np.frombuffer(long[:512], dtype=np.uint8).reshape(2, 256)
    assert crc32c.of_rows(halves).tolist() == [
        crc32c.of_bytes(long[:256]),
        crc32c.of_bytes(long[256:512]),
    ]
    assert crc32c.of_bytes(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4


def test_two_event_files_of_a_folder_are_two_attempts_and_a_rollback() -> None:
    facts = read(RUN)
    assert facts.problems == ()
    assert facts.rollbacks == (Rollback(attempt=1, last_step=19, first_step=15),)
    for attempt, steps in ((0, range(20)), (1, range(15, 25))):
        found = one(facts, "loss/mean", attempt)
        assert found.steps.tolist() == list(steps)
        assert found.values == pytest.approx(
            [float(np.float32(loss(step))) for step in steps], nan_ok=True
        )
        assert found.times_s is not None
        assert found.times_s[0] == 1_700_000_000 + 1000 * attempt + steps[0]
    assert one(facts, "grad/norm", 1).values.tolist() == [
        step + 0.5 for step in range(15, 25)
    ]  # new-style tensors
    assert any("30 values are no scalars" in note for note in facts.notes)


def test_every_point_equals_tensorboards_own_reader(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    draw = random.Random(7)
    tags = ["loss", "a", *(f"layers.{k}/{'x' * k}" for k in range(40)), "t" * 300]
    events = [
        scalar(
            tag,
            step,
            draw.choice([0.0, -0.0, math.inf, draw.gauss(0, 1)]),
            time_s=draw.choice([0.0, 1e9 + step]),
        )
        for step in [*range(0, 300), 2**20, 2**34, 2**40]
        for tag in tags
    ]
    path = write(tmp_path / "events.out.tfevents.1", events)
    theirs = accumulator.EventAccumulator(str(path), size_guidance={"scalars": 0})
    theirs.Reload()
    facts = read(path)
    assert {series.written_as for series in facts.series} == set(theirs.Tags()["scalars"])
    assert sum(len(series.steps) for series in facts.series) == len(events)
    for series in facts.series:
        expected = theirs.Scalars(series.written_as)
        assert series.steps.tolist() == [point.step for point in expected]
        assert series.values.tolist() == [point.value for point in expected]
        times = [point.wall_time for point in expected]
        assert series.times_s is None or series.times_s.tolist() == times


def test_step_zero_and_time_zero_are_kept(tmp_path: Path) -> None:
    path = write(
        tmp_path / "tfevents", [scalar("a", step, step, time_s=float(step)) for step in range(50)]
    )
    found = one(read(path), "a")
    assert found.steps.tolist() == list(range(50))
    assert found.values.tolist() == [float(step) for step in range(50)]


def test_a_step_that_goes_back_inside_one_file_is_another_attempt(tmp_path: Path) -> None:
    steps = [*range(40), *range(30, 60)]
    path = write(
        tmp_path / "tfevents", [scalar(tag, step, 1.0) for step in steps for tag in ("a", "b")]
    )
    facts = read(path)
    assert facts.rollbacks == (Rollback(attempt=1, last_step=39, first_step=30),)
    assert one(facts, "b", 1).steps.tolist() == list(range(30, 60))


def test_a_flipped_bit_costs_its_own_record_only(tmp_path: Path) -> None:
    events = [scalar("loss", step, step) for step in range(1, 101)]
    data = bytearray(write(tmp_path / "tfevents", events).read_bytes())
    size_bytes = len(frame(events[0]))
    data[len(frame(b"\x1a\x0dbrain.Event:2")) + 49 * size_bytes + size_bytes - 6] ^= (
        1  # in the value of step 50
    )
    (tmp_path / "tfevents").write_bytes(data)
    facts = read(tmp_path / "tfevents")
    assert one(facts, "loss/mean").steps.tolist() == [step for step in range(1, 101) if step != 50]
    assert facts.num_near_misses == 1
    assert facts.problems == (
        "tfevents: 1 records fail their checksum and were left out (record 50)",
    )


def test_a_broken_length_is_stepped_over(tmp_path: Path) -> None:
    events = [scalar("loss", step, step) for step in range(1, 101)]
    data = bytearray(write(tmp_path / "tfevents", events).read_bytes())
    size_bytes = len(frame(events[0]))
    at = len(frame(b"\x1a\x0dbrain.Event:2")) + 49 * size_bytes
    data[at : at + 8] = b"\xff" * 8
    (tmp_path / "tfevents").write_bytes(data)
    facts = read(tmp_path / "tfevents")
    assert one(facts, "loss/mean").steps.tolist() == [step for step in range(1, 101) if step != 50]
    assert f"byte {at}: expected a record" in facts.problems[0]
    assert f"{size_bytes} bytes lost" in facts.problems[0]


def test_a_git_lfs_pointer_is_named_and_its_length_never_believed(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(LFS_POINTER)
    with pytest.raises(EvidenceError, match="Git-LFS pointer: the file was never fetched") as told:
        read(path)
    assert "git lfs pull" in told.value.hint
    (tmp_path / "events.out.tfevents.2").write_bytes(FIRST.read_bytes())
    facts = read(tmp_path)
    assert len(one(facts, "loss/mean").steps) == 20
    assert "Git-LFS pointer" in facts.problems[0]


def test_an_empty_event_file_is_told_not_raised(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(b"")
    assert "is empty" in read(path).problems[0]


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(0, 4011))
def test_whatever_precedes_a_truncation_is_kept(
    cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = FIRST.read_bytes()
    path = tmp_path_factory.mktemp("cut") / "events.out.tfevents.1"
    path.write_bytes(data[:cut])
    try:
        facts = read(path)
    except EvidenceError:
        assert cut < 40
        return
    whole = one(read(FIRST), "loss/mean")
    kept = [series for series in facts.series if series.name == "loss/mean"]
    num_kept = len(kept[0].steps) if kept else 0
    assert num_kept >= cut * 20 // len(data) - 1
    assert num_kept == 0 or kept[0].steps.tolist() == whole.steps[:num_kept].tolist()


@settings(max_examples=80, deadline=None)
@given(
    places=st.lists(st.tuples(st.integers(0, 4011), st.integers(1, 255)), min_size=1, max_size=4)
)
def test_no_flip_invents_a_point(
    places: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = bytearray(FIRST.read_bytes())
    for at, bits in places:
        data[at] ^= bits
    path = tmp_path_factory.mktemp("flip") / "events.out.tfevents.1"
    path.write_bytes(data)
    good = {
        (series.name, step, str(value))
        for series in read(FIRST).series
        for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True)
    }
    try:
        facts = read(path)
    except EvidenceError:
        return
    seen = {
        (series.name, step, str(value))
        for series in facts.series
        for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True)
    }
    assert seen <= good
    assert bytes(data) == FIRST.read_bytes() or facts.problems


def test_claims() -> None:
    assert tensorboard.claims(look(FIRST)) > 0.95
    assert tensorboard.claims(look(RUN)) > 0.9
    assert tensorboard.claims(look(Path(__file__))) == 0


def test_files_written_at_the_same_time_are_processes_not_attempts(tmp_path: Path) -> None:
    for host in ("a", "b"):
        events = [scalar("loss", step, step, time_s=100.0 + step) for step in range(1, 30)]
        write(tmp_path / f"events.out.tfevents.1.{host}", events)
    facts = read(tmp_path)
    assert [(series.source, series.attempt) for series in facts.series] == [
        ("events.out.tfevents.1.a", 0),
        ("events.out.tfevents.1.b", 0),
    ]
    assert facts.rollbacks == ()
    assert any("by another process" in note for note in facts.notes)
