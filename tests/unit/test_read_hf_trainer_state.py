"""`trainer_state.json`.

The NaN that the default filter hides, healthy zeros, prefixes, and a history that parts.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from telemetry_files import LFS_POINTER, one

from spiketriage.errors import EvidenceError
from spiketriage.nouns.series import LogFacts, Rollback
from spiketriage.readers.look import look
from spiketriage.readers.telemetry.series.names import DEFAULT
from spiketriage.readers.telemetry.tables import hf_trainer_state

Entry = Mapping[str, object]


def write(path: Path, history: Sequence[Entry], *, modified_s: int = 1000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps({"global_step": len(history), "log_history": list(history)}, indent=2)
    )
    os.utime(path, (modified_s, modified_s))
    return path


def entries(steps: Sequence[int], *, loss: float = 2.0) -> list[Entry]:
    return [{"step": step, "loss": loss, "grad_norm": 1.0, "epoch": step / 10} for step in steps]


def read(path: Path) -> LogFacts:
    return hf_trainer_state.read(path, DEFAULT)


def test_a_zero_loss_beside_a_nonfinite_gradient_norm_is_nan_with_its_reason(
    tmp_path: Path,
) -> None:
    bad = [
        {"step": step, "loss": 0.0, "grad_norm": norm}
        for step, norm in ((4, math.nan), (5, math.inf))
    ]
    found = one(
        read(write(tmp_path / "trainer_state.json", [*entries([1, 2, 3]), *bad])), "loss/mean"
    )
    assert found.values.tolist()[:3] == [2.0] * 3
    assert all(math.isnan(value) for value in found.values.tolist()[3:])
    assert set(found.reasons) == {3, 4}
    assert "logging_nan_inf_filter" in found.reasons[3]
    assert not found.trusted


def test_a_healthy_run_of_zeros_stays_as_it_is(tmp_path: Path) -> None:
    history = [
        {"step": step, "loss": 0.0 if step % 5 else 0.1, "grad_norm": 0.3}
        for step in range(1, 1001)
    ]
    found = one(read(write(tmp_path / "trainer_state.json", history)), "loss/mean")
    assert (found.values == 0.0).mean() == 0.8
    assert (found.reasons, found.trusted) == ({}, True)


def test_zeros_without_a_gradient_norm_are_kept_but_not_trusted(tmp_path: Path) -> None:
    found = one(
        read(write(tmp_path / "trainer_state.json", [{"step": 1, "loss": 0.0}])), "loss/mean"
    )
    assert (found.values.tolist(), found.trusted) == ([0.0], False)


def test_a_mean_over_a_filtered_gap_is_not_trusted(tmp_path: Path) -> None:
    history = [*entries([10, 20]), {"step": 30, "loss": 1.4, "grad_norm": math.nan}]
    found = one(read(write(tmp_path / "trainer_state.json", history)), "loss/mean")
    assert (found.values.tolist(), found.trusted) == ([2.0, 2.0, 1.4], False)


def test_the_final_mean_is_no_point_of_the_loss(tmp_path: Path) -> None:
    history = [*entries([1, 2]), {"step": 2, "train_loss": 1.5, "train_runtime": 3.0}]
    facts = read(write(tmp_path / "trainer_state.json", history))
    assert one(facts, "loss/mean").values.tolist() == [2.0, 2.0]
    assert one(facts, "train_loss").values.tolist() == [1.5]


def test_growing_prefixes_are_one_history(tmp_path: Path) -> None:
    nan = [{"step": 3, "loss": math.nan, "grad_norm": 1.0}]
    for last in (3, 6, 12):
        history = [*entries([1, 2]), *nan, *entries(range(4, last + 1))]
        write(tmp_path / f"checkpoint-{last}" / "trainer_state.json", history)
    facts = read(tmp_path)
    assert one(facts, "loss/mean").steps.tolist() == list(range(1, 13))
    assert facts.rollbacks == ()
    assert "3 states: 2 are verified prefixes of a longer one" in facts.notes


def test_a_history_that_parts_is_another_attempt_and_a_rollback(tmp_path: Path) -> None:
    write(tmp_path / "checkpoint-5" / "trainer_state.json", entries(range(1, 6)), modified_s=1000)
    write(tmp_path / "checkpoint-9" / "trainer_state.json", entries(range(1, 10)), modified_s=2000)
    resumed = [*entries(range(1, 6)), *entries(range(6, 9), loss=3.0)]
    write(tmp_path / "checkpoint-8" / "trainer_state.json", resumed, modified_s=3000)
    facts = read(tmp_path)
    assert one(facts, "loss/mean", 0).steps.tolist() == list(range(1, 10))
    assert one(facts, "loss/mean", 1).steps.tolist() == [
        6,
        7,
        8,
    ]  # what it shares with the first is told once
    assert one(facts, "loss/mean", 1).values.tolist() == [3.0] * 3
    assert facts.rollbacks == (Rollback(attempt=1, last_step=9, first_step=6),)
    assert any("2 histories part ways" in note for note in facts.notes)


def test_one_broken_state_among_others_is_a_problem_not_an_end(tmp_path: Path) -> None:
    write(tmp_path / "checkpoint-5" / "trainer_state.json", entries(range(1, 6)))
    for name, content in (("checkpoint-9", LFS_POINTER), ("checkpoint-10", b'{"log_history": 3}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "trainer_state.json").write_bytes(content)
    facts = read(tmp_path)
    assert len(one(facts, "loss/mean").steps) == 5
    assert len(facts.problems) == 2
    assert "Git-LFS pointer" in facts.problems[0]


def test_entries_of_wrong_types_are_counted(tmp_path: Path) -> None:
    history = [
        3,
        None,
        {"step": "x"},
        {"step": 1.5},
        {"step": 2, "loss": [], "a": True, "b": "NaN", "c": 10**400},
    ]
    facts = read(write(tmp_path / "trainer_state.json", history))  # type: ignore[arg-type]
    assert (facts.num_near_misses, [series.name for series in facts.series]) == (4, ["b", "c"])
    assert one(facts, "b").reasons == {0: "written as the text 'NaN'"}


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_damage_gives_facts_or_a_sentence(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write(tmp_path_factory.mktemp("state") / "trainer_state.json", entries(range(1, 4)))
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        del content[at:]
    else:
        content[at] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        facts = read(path)
    except EvidenceError:
        return
    assert all(len(series.steps) == len(series.values) <= 3 for series in facts.series)


def test_claims(tmp_path: Path) -> None:
    path = write(tmp_path / "checkpoint-3" / "trainer_state.json", entries([1]))
    assert hf_trainer_state.claims(look(path)) > 0.95
    assert hf_trainer_state.claims(look(tmp_path)) > 0.5
    assert hf_trainer_state.claims(look(Path(__file__).parent)) == 0
