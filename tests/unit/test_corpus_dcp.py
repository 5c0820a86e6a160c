"""The real torch DCP checkpoint of the corpus, with the values that a person reads off it."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from spiketriage.readers.checkpoints.dcp import layout
from spiketriage.readers.checkpoints.files.zip_records import data_record
from spiketriage.readers.checkpoints.formats import LAYOUTS
from spiketriage.readers.look import best, look

FOLDER = Path(__file__).parents[3] / "shared" / "corpus" / "gen_dcp_step7"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the corpus is not here")


def test_it_is_recognized() -> None:
    found = best(LAYOUTS, look(FOLDER))
    assert found is not None
    assert (found[0].NAME, found[1]) == ("dcp", 0.9)


def test_it_is_complete_and_all_places_state_step_seven() -> None:
    facts = layout.read(FOLDER)
    assert facts.complete
    assert facts.problems == ()
    assert facts.world_size == 2
    assert [(one.source, one.step) for one in facts.stated_steps] == [
        ("the name gen_dcp_step7", 7),
        ("train_state.step", 7),
        ("optim.state.w.step", 7),
    ]
    assert [(one.path, one.size_bytes) for one in facts.files] == [
        (".metadata", 2072),
        ("__0_0.distcp", 5439),
        ("__1_0.distcp", 9854),
    ]


def test_its_tensors_and_where_they_lie() -> None:
    tensors = {one.name: one for one in layout.read(FOLDER).tensors}
    assert {
        name: (one.dtype, one.shape, one.role, one.parameter) for name, one in tensors.items()
    } == {
        "model.w": ("F32", (33, 8), "parameter", ""),
        "optim.state.w.exp_avg": ("F32", (33, 8), "optimizer", "model.w"),
        "optim.state.w.step": ("F32", (), "optimizer", "model.w"),
        "train_state.ntokens": ("I64", (), "other", ""),
    }
    places = [
        (part.path, part.start, part.end, part.offset, part.shape)
        for part in tensors["model.w"].chunks
    ]
    assert places == [
        ("__0_0.distcp", 1261, 3350, (0, 0), (17, 8)),
        ("__1_0.distcp", 2522, 4611, (17, 0), (16, 8)),
    ]


def test_its_weights_sum_to_what_torch_computed_and_their_crc_holds() -> None:
    weights = next(one for one in layout.read(FOLDER).tensors if one.name == "model.w")
    total = 0.0
    for part in weights.chunks:
        with (FOLDER / part.path).open("rb") as stream:
            record = data_record(stream, part.start, part.end)
            stream.seek(record.start)
            data = stream.read(record.end - record.start)
        assert record.crc32 == zlib.crc32(data)
        total += float(np.frombuffer(data, dtype="<f4").sum(dtype=np.float64))
    assert total == pytest.approx(8.609, abs=5e-4)  # incidents.md §4, 14


def test_its_other_state() -> None:
    fields = {one.name: one for one in layout.read(FOLDER).fields}
    assert {name: (one.kind, one.rank, one.path) for name, one in fields.items()} == {
        "dataloader.dp_rank_0": ("cursor", 0, "__0_0.distcp"),
        "dataloader.dp_rank_1": ("cursor", 1, "__1_0.distcp"),
        "train_state.step": ("progress", None, "__1_0.distcp"),
        "train_state.ntokens": ("progress", None, "__1_0.distcp"),
    }
    assert fields["train_state.ntokens"].values == {"value": "7168"}
    assert fields["dataloader.dp_rank_0"].digest != fields["dataloader.dp_rank_1"].digest
    raw = (FOLDER / "__1_0.distcp").read_bytes()
    assert b"cursor-1" in raw[:1261]
    assert struct.pack("<q", 7168) in raw[8277:]
