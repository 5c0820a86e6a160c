"""The builder that every layout fills: what parts add up to, and what is stated once."""

from __future__ import annotations

import re

import pytest
import torch

from spiketriage.errors import EvidenceError
from spiketriage.nouns.checkpoint import StatedStep
from spiketriage.nouns.file import StoredFile
from spiketriage.readers.checkpoints.building.builder import NO_DATA_STATE, begin, begin_folder
from spiketriage.readers.checkpoints.layouts import torch_save


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "x.pt").write_bytes(b"12")
    for rank in (0, 10):
        (tmp_path / f"rng_{rank}.pt").write_bytes(b"1")
    return tmp_path


def test_a_folder_begins_with_its_files_and_a_file_with_itself(folder):
    assert begin_folder(folder).names == ("inner", "rng_0.pt", "rng_10.pt")
    assert begin_folder(folder).files[0] == StoredFile(path="inner/x.pt", size_bytes=2)
    assert begin(folder / "rng_0.pt").files == (StoredFile(path="", size_bytes=1),)


def test_what_is_no_folder_or_missing_is_refused(folder):
    with pytest.raises(EvidenceError, match="is a file"):
        begin_folder(folder / "rng_0.pt")
    with pytest.raises(EvidenceError, match="no such file"):
        begin(folder / "nothing")


def test_a_whole_is_complete_only_if_its_parts_are(folder):
    builder = begin(folder)
    part = builder.part()
    part.lacks("there are no weights")
    builder.notes.append("before")
    part.notes.append("after")
    builder.add(part)
    facts = builder.finish("some-layout")
    assert not facts.complete
    assert facts.problems == (f"{folder}: there are no weights",)
    assert facts.notes == ("before", "after")
    assert (facts.layout, facts.name) == ("some-layout", folder.name)


def test_a_failure_names_what_can_be_done_about_it(folder):
    builder = begin(folder)
    builder.failed(EvidenceError("x.pt: is a pointer", hint="git lfs pull"))
    assert not builder.complete
    assert builder.finish("x").problems == ("x.pt: is a pointer (git lfs pull)",)


def test_what_several_files_state_alike_is_stated_once_in_first_order(folder):
    builder = begin(folder)
    builder.steps += [StatedStep(source=name, step=3) for name in ("b", "a", "b")]
    builder.notes += ["second", "first", "second"]
    facts = builder.finish("x")
    assert [stated.source for stated in facts.stated_steps] == ["b", "a"]
    assert facts.notes == ("second", "first")


def test_names_are_told_apart_by_the_number_in_them(folder):
    assert begin(folder).numbered(re.compile(r"rng_(\d+)\.pt")) == {
        0: "rng_0.pt",
        10: "rng_10.pt",
    }


def test_a_checkpoint_without_random_state_and_cursor_says_what_cannot_be_proved(tmp_path):
    weights = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(weights.parameters())
    weights(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state = {"model": weights.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, tmp_path / "bare.pt")
    torch.save({**state, "rng_state": torch.get_rng_state()}, tmp_path / "with_rng.pt")
    torch.save({"model": weights.state_dict()}, tmp_path / "weights.pt")
    told = {
        path.name for path in tmp_path.iterdir() if NO_DATA_STATE in torch_save.read(path).notes
    }
    assert told == {"bare.pt"}
