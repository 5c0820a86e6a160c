"""The torch.save files of the corpus, made by transformers and torch DCP.

What a person reads off them.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from spiketriage.readers.checkpoints.files.torch_zip import data_record, read_torch_file
from spiketriage.readers.inert import attribute
from spiketriage.readers.pickles import load

CORPUS = Path(__file__).parents[3] / "shared" / "corpus"
pytestmark = pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus is not here")
HF = CORPUS / "gen_hf_checkpoint8"


def test_optimizer():
    file = read_torch_file(HF / "optimizer.pt")
    state = file.value["state"]
    assert (len(state), file.problems) == (16, ())
    assert (state[0]["exp_avg"].shape, state[0]["exp_avg"].dtype) == ((64, 16), "F32")
    step = state[0]["step"]
    assert struct.unpack("<f", (HF / "optimizer.pt").read_bytes()[step.start : step.end]) == (8.0,)


def test_scheduler():
    value = read_torch_file(HF / "scheduler.pt").value
    assert (value["last_epoch"], value["base_lrs"]) == (8, [5e-05, 5e-05])


def test_random_state():
    file = read_torch_file(HF / "rng_state.pth")
    assert set(file.value) == {"python", "numpy", "cpu"}
    assert file.value["python"][1][:2] == (2147483648, 3564348608)
    assert (file.value["cpu"].dtype, file.value["cpu"].shape) == ("U8", (5056,))
    assert "numpy._core.multiarray._reconstruct" in file.globals


def test_training_arguments():
    file = read_torch_file(HF / "training_args.bin")
    assert file.globals[0] == "transformers.training_args.TrainingArguments"
    seen = [attribute(file.value, name) for name in ("learning_rate", "max_steps", "seed")]
    assert seen == [5e-05, 10, 42]
    assert attribute(file.value, "lr_scheduler_type").args == ("linear",)


def test_a_chunk_of_a_distributed_checkpoint():
    folder = CORPUS / "gen_dcp_step7"
    metadata = load((folder / ".metadata").read_bytes(), where=".metadata").value
    found = {
        attribute(key, "fqn"): value for key, value in attribute(metadata, "storage_data").items()
    }
    place = found["optim.state.w.step"]
    with (folder / attribute(place, "relative_path")).open("rb") as stream:
        start = attribute(place, "offset")
        record = data_record(stream, start, start + attribute(place, "length"))
        stream.seek(record.start)
        assert struct.unpack("<f", stream.read(record.end - record.start)) == (7.0,)
