"""CSV telemetry.

Generic, Lightning's versions and DeepSpeed's monitor, with their restarts and their gaps.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from telemetry_files import FIXTURES, LFS_POINTER, NUM_STEPS, loss, one, points

from spiketriage.errors import EvidenceError
from spiketriage.nouns.series import Rollback
from spiketriage.readers.look import look
from spiketriage.readers.telemetry.series.names import DEFAULT, Names
from spiketriage.readers.telemetry.tables import csv_file, deepspeed_csv, lightning_csv

VERSIONS = FIXTURES / "lightning_logs"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_numbers_gaps_and_nonfinite_words(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.csv", 'step,loss,lr,note\n0,2.5,0.1,"a, b"\n1,nan,,x\n2,-inf,1e-3,\n'
    )
    facts = csv_file.read(path, DEFAULT)
    assert points(one(facts, "loss/mean")) == [(0, 2.5), (1, None), (2, -math.inf)]
    assert points(one(facts, "lr")) == [(0, 0.1), (2, 1e-3)]
    assert (len(facts.series), facts.problems) == (2, ())


@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
def test_a_mapping_and_a_delimiter(delimiter: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "tick,objective\n10,1.5\n20,2.5\n".replace(",", delimiter))
    names = Names(columns={"tick": "step", "objective": "loss/mean"})
    assert points(one(csv_file.read(path, names), "loss/mean")) == [(10, 1.5), (20, 2.5)]


def test_a_repeated_header_begins_an_attempt(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "step,loss\n0,3\n1,2\n2,1\nstep,loss\n1,2.5\n2,1.5\n")
    facts = csv_file.read(path, DEFAULT)
    assert points(one(facts, "loss/mean", 1)) == [(1, 2.5), (2, 1.5)]
    assert facts.rollbacks == (Rollback(attempt=1, last_step=2, first_step=1),)


def test_steps_that_go_back_begin_an_attempt_after_a_header_as_well(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "step,loss\n0,3\n1,2\n0,9\nstep,loss\n1,4\n0,5\n")
    facts = csv_file.read(path, DEFAULT)
    assert [points(one(facts, "loss/mean", k)) for k in range(4)] == [
        [(0, 3), (1, 2)],
        [(0, 9)],
        [(1, 4)],
        [(0, 5)],
    ]
    assert [back.attempt for back in facts.rollbacks] == [1, 3]


def test_torn_lines_are_named(tmp_path: Path) -> None:
    facts = csv_file.read(write(tmp_path / "a.csv", "step,loss\n0,3\n1\n2,1\n3,0.12"), DEFAULT)
    assert points(one(facts, "loss/mean")) == [(0, 3), (2, 1)]
    assert "line 3 has 1 cells, expected 2" in facts.problems[0]
    assert (
        "line 5 has no newline, so that its last value may be cut short: left out"
        in facts.problems[1]
    )


def test_files_that_are_no_table(tmp_path: Path) -> None:
    for content in (b"a,b\n1,2\n", LFS_POINTER, b"\xff\xfe\0\1" * 20):
        (tmp_path / "a.csv").write_bytes(content)
        with pytest.raises(EvidenceError):
            csv_file.read(tmp_path / "a.csv", DEFAULT)
    (tmp_path / "a.csv").write_bytes(b"")
    assert csv_file.read(tmp_path / "a.csv", DEFAULT).problems == ("is empty",)


def test_a_line_without_end_takes_no_more_than_its_share(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "step,loss\n0,3\n" + "9" * (3 << 20) + "\n1,2\n")
    facts = csv_file.read(path, DEFAULT)
    assert points(one(facts, "loss/mean")) == [(0, 3), (1, 2)]
    assert (facts.num_lines, facts.num_near_misses) == (4, 1)


@settings(max_examples=50, deadline=None)
@given(cut=st.integers(0, 200), junk=st.binary(max_size=8))
def test_any_damage_gives_facts_or_a_sentence(
    cut: int, junk: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = ("step,loss\n" + "".join(f"{k},{k / 4}\n" for k in range(30))).encode()
    path = tmp_path_factory.mktemp("cut") / "a.csv"
    path.write_bytes(data[:cut] + junk)
    try:
        facts = csv_file.read(path, DEFAULT)
    except EvidenceError:
        return
    whole = [(k, k / 4) for k in range(data[:cut].count(b"\n") - 1)]
    found = [pair for series in facts.series for pair in points(series)]
    assert found[: len(whole)] == whole


def test_lightning_versions_are_attempts() -> None:
    facts = lightning_csv.read(VERSIONS, DEFAULT)
    for attempt, steps in ((0, range(NUM_STEPS)), (1, range(15, 25))):
        found = one(facts, "loss/mean", attempt)
        assert found.steps.tolist() == [
            step + 1 for step in steps
        ]  # finished steps, as its checkpoints count
        assert found.values == pytest.approx([loss(step) for step in steps], nan_ok=True)
    assert points(one(facts, "val_loss", 0)) == [(10, 2.0), (20, 2.0)]
    assert facts.rollbacks == (Rollback(attempt=1, last_step=20, first_step=16),)
    assert any("from 0" in note for note in facts.notes)
    assert one(facts, "loss/mean", 0).source == "version_0/metrics.csv"


def test_lightning_from_one_version_or_one_file() -> None:
    for path in (VERSIONS / "version_1", VERSIONS / "version_1" / "metrics.csv"):
        facts = lightning_csv.read(path, DEFAULT)
        assert one(facts, "loss/mean").steps.tolist() == list(range(16, 26))


def test_a_lightning_version_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    write(tmp_path / "version_2" / "metrics.csv", "epoch,step,loss\n0,0,1\n")
    (tmp_path / "version_10").mkdir()
    facts = lightning_csv.read(tmp_path, DEFAULT)
    assert len(facts.series) == 2
    assert "version_10" in facts.problems[0]


def test_deepspeed_has_a_file_a_tag_and_samples_for_steps(tmp_path: Path) -> None:
    write(
        tmp_path / "Train_Samples_train_loss.csv",
        "step,train_loss\n64,3.5\n128,3.0\nstep,train_loss\n128,2.9\n",
    )
    write(tmp_path / "Train_Samples_lr.csv", "step,lr\n64,0.1\n")
    facts = deepspeed_csv.read(tmp_path, DEFAULT)
    found = one(facts, "loss/mean", 0)
    assert (points(found), found.written_as) == (
        [(64, 3.5), (128, 3.0)],
        "Train/Samples/train_loss",
    )
    assert (found.trusted, found.trust) == (False, "x is global_samples, not steps")
    assert points(one(facts, "loss/mean", 1)) == [(128, 2.9)]
    assert facts.rollbacks == (Rollback(attempt=1, last_step=128, first_step=128),)


def test_claims(tmp_path: Path) -> None:
    assert lightning_csv.claims(look(VERSIONS)) > 0.8
    metrics = look(VERSIONS / "version_0" / "metrics.csv")
    assert lightning_csv.claims(metrics) > csv_file.claims(metrics) > 0.7
    write(tmp_path / "lightning_logs" / "version_0" / "events.out.tfevents.1", "")
    assert lightning_csv.claims(look(tmp_path / "lightning_logs")) == 0
    tag = look(write(tmp_path / "Train_Samples_lr.csv", "step,lr\n64,0.1\n"))
    assert deepspeed_csv.claims(tag) > csv_file.claims(tag)
    assert deepspeed_csv.claims(look(tmp_path)) > 0.8
    assert csv_file.claims(look(Path(__file__))) == 0
    assert csv_file.claims(look(write(tmp_path / "people.csv", "name,age\nA,3\n"))) < 0.5
