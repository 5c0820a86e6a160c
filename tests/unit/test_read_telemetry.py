"""Telemetry as a crash leaves it: torn, flipped, foreign, incomplete, restarted."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_folder import Plants, header_frame, layout_frame, segment_bytes, write_run

from spiketriage.errors import CorruptFileError, EvidenceError
from spiketriage.nouns.data import Document
from spiketriage.nouns.telemetry import Link
from spiketriage.readers.telemetry.run.sources import read_telemetry
from spiketriage.readers.telemetry.stores.native import read_segment
from spiketriage.wire import telemetry as wire

DOCUMENTS = {
    f"doc-{n}": Document(
        id=f"doc-{n}", shard="s", offset_bytes=n, length_bytes=1, source="x", digest=f"{n:032x}"
    )
    for n in range(8)
}
WHOLE = segment_bytes(0, 1, range(81, 84), DOCUMENTS, Plants(), None)
ENDS = [frame.end for frame in wire.iter_frames(WHOLE)]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("healthy") / "run")


def test_a_segment_gives_back_what_was_written(tmp_path):
    path = tmp_path / "a.seg"
    path.write_bytes(WHOLE)
    segment = read_segment(path)
    assert (segment.rank, segment.attempt, segment.torn_bytes, segment.problem) == (0, 1, 0, "")
    assert [step.step for step in segment.steps] == [81, 82, 83]
    assert segment.loads[0].generation == "step-000080"
    assert segment.identity.world_size == 2
    assert len(segment.steps[0].digests[Link("loss", "sum")]) == 16
    assert segment.steps[0].metrics["tokens/valid"] == 32.0


@settings(max_examples=80, deadline=None)
@given(cut=st.integers(0, len(WHOLE)))
def test_a_segment_torn_at_any_byte_gives_every_step_before_it(tmp_path_factory, cut):
    path = tmp_path_factory.getbasetemp() / "torn.seg"
    path.write_bytes(WHOLE[:cut])
    if cut < ENDS[0]:
        with pytest.raises(CorruptFileError, match=r"torn\.seg"):
            read_segment(path)
        return
    segment = read_segment(path)
    intact = [end for end in ENDS if end <= cut]
    assert len(segment.steps) == max(0, len(intact) - 3)  # header, layout and load come first
    assert segment.torn_bytes == cut - intact[-1]
    assert bool(segment.problem) == (segment.torn_bytes > 0)


@settings(max_examples=80, deadline=None)
@given(at=st.integers(0, len(WHOLE) - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_never_changes_a_record_that_is_returned(tmp_path_factory, at, bit):
    path = tmp_path_factory.getbasetemp() / "flipped.seg"
    data = bytearray(WHOLE)
    data[at] ^= 1 << bit
    path.write_bytes(data)
    if at < ENDS[0]:
        with pytest.raises(CorruptFileError):
            read_segment(path)
        return
    segment = read_segment(path)
    assert segment.problem
    assert len(segment.steps) == sum(end <= at for end in ENDS[3:])


@pytest.mark.parametrize(
    "data", [b"", b"STSEG00", b"STSEG002" + WHOLE[8:], b"\xff\xfe\x00", wire.MAGIC + layout_frame()]
)
def test_what_is_not_a_segment_is_refused_with_its_name(tmp_path, data):
    path = tmp_path / "foreign.seg"
    path.write_bytes(data)
    with pytest.raises(CorruptFileError, match=r"foreign\.seg"):
        read_segment(path)


def test_a_header_that_claims_an_absurd_world_is_refused(tmp_path):
    path = tmp_path / "a.seg"
    path.write_bytes(wire.MAGIC + header_frame(0, 0, world_size=10**15))
    with pytest.raises(CorruptFileError, match="world size"):
        read_segment(path)


def test_an_intact_frame_with_nonsense_in_it_costs_only_itself(tmp_path):
    path = tmp_path / "a.seg"
    nonsense = [
        wire.encode_frame(wire.STEP, b""),
        wire.encode_frame(wire.STEP, wire.encode_step({"step": -1}, 0, b"")),
        wire.encode_frame(wire.LOAD, b"[" * 100_000),
        wire.encode_frame(wire.LAYOUT, b"[]"),
        wire.encode_frame(9, b"{}"),
    ]
    path.write_bytes(WHOLE[: ENDS[3]] + b"".join(nonsense) + WHOLE[ENDS[3] :])
    segment = read_segment(path)
    assert [step.step for step in segment.steps] == [81, 82, 83]
    assert segment.torn_bytes == 0
    assert segment.problem.count("frame that ends at byte") == 5


def test_nan_survives_as_nan(tmp_path):
    run = write_run(tmp_path / "run", nan_at=110)
    record = read_telemetry(run / "telemetry").at(0, 110)
    assert math.isnan(record.metrics["loss/mean"])
    assert record.nonfinite == (Link("loss", "sum"),)


def test_production_is_the_latest_attempt(healthy):
    telemetry = read_telemetry(healthy / "telemetry")
    assert telemetry.ranks == (0, 1)
    assert telemetry.attempts == (0, 1)
    assert telemetry.steps == tuple(range(1, 121))
    assert [telemetry.at(1, step).attempt for step in (80, 81, 90, 91)] == [0, 1, 1, 1]
    assert telemetry.identity(80).code_path == "code/r1"
    assert telemetry.identity(81).code_path == "code/r2"
    assert telemetry.identity(999) is None
    assert [record.step for record in telemetry.lineage(0)] == list(range(1, 121))
    assert {(load.rank, load.generation) for load in telemetry.loads} == {
        (0, "step-000080"),
        (1, "step-000080"),
    }
    assert telemetry.missing_ranks == ()


def test_a_torn_rank_is_absent_rather_than_replaced_by_an_abandoned_attempt(tmp_path):
    run = write_run(tmp_path / "run")
    path = run / "telemetry" / "rank-00001.attempt-001.seg"
    ends = [frame.end for frame in wire.iter_frames(path.read_bytes())]
    path.write_bytes(path.read_bytes()[: ends[7]])  # header, layout, load, then steps 81 to 85
    telemetry = read_telemetry(run / "telemetry")
    assert telemetry.at(1, 85).attempt == 1
    assert telemetry.at(1, 86) is None
    assert telemetry.at(0, 86).attempt == 1


def test_a_missing_rank_is_named(tmp_path):
    telemetry = read_telemetry(write_run(tmp_path / "run", missing_rank=1) / "telemetry")
    assert telemetry.missing_ranks == (1,)
    assert telemetry.ranks == (0,)


def test_an_unreadable_segment_is_a_problem_and_not_an_error(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "telemetry" / "rank-00001.attempt-000.seg").write_bytes(b"\xffnot a segment")
    (run / "telemetry" / "loop.seg").symlink_to("loop.seg")
    telemetry = read_telemetry(run / "telemetry")
    assert len(telemetry.segments) == 3
    assert sorted(
        problem.partition(": ")[0].rpartition("/")[2] for problem in telemetry.problems
    ) == [
        "loop.seg",
        "rank-00001.attempt-000.seg",
    ]
    assert telemetry.missing_ranks == (1,)


@pytest.mark.parametrize("kind", ["missing", "empty", "file", "loop", "only damaged"])
def test_a_folder_without_readable_telemetry_is_one_clear_error(tmp_path, kind):
    folder = tmp_path / "telemetry"
    if kind == "file":
        folder.write_text("x")
    elif kind == "loop":
        folder.symlink_to("telemetry")
    elif kind != "missing":
        folder.mkdir()
    if kind == "only damaged":
        (folder / "a.seg").write_bytes(b"junk")
    with pytest.raises(EvidenceError, match="telemetry"):
        read_telemetry(folder)


def test_the_json_of_a_step_is_strict_json(healthy):
    data = (healthy / "telemetry" / "rank-00000.attempt-000.seg").read_bytes()
    frame = next(frame for frame in wire.iter_frames(data) if frame.kind == wire.STEP)
    size = int.from_bytes(frame.payload[:4], "little")
    assert json.loads(frame.payload[8 : 8 + size])["step"] == 1
