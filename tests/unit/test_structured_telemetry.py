"""What every reader of structured telemetry keeps, whatever it is pointed at."""

from __future__ import annotations

import os
import random
import re
import resource
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from telemetry_files import FIXTURES, LFS_POINTER

from spiketriage.errors import EvidenceError
from spiketriage.nouns.series import LogFacts
from spiketriage.readers.look import best, look
from spiketriage.readers.telemetry.formats import FORMATS
from spiketriage.readers.telemetry.series.names import DEFAULT
from spiketriage.readers.telemetry.stores import (
    mlflow_store,
    tensorboard,
    trackio_store,
    wandb_file,
)
from spiketriage.readers.telemetry.tables import (
    csv_file,
    deepspeed_csv,
    hf_trainer_state,
    jsonl,
    lightning_csv,
    olmo_metrics,
)

READERS = (
    tensorboard, wandb_file, hf_trainer_state, mlflow_store, trackio_store, lightning_csv, deepspeed_csv, olmo_metrics,
    jsonl, csv_file,
)  # fmt: skip
NAMES = (
    "events.out.tfevents.1", "run-a.wandb", "trainer_state.json", "mlflow.db", "project.db", "metrics.csv",
    "Train_Samples_lr.csv", "metrics_step1.json", "a.jsonl", "a.csv",
)  # fmt: skip
HOSTILE = {
    "empty": b"",
    "pointer": LFS_POINTER,
    "zeros": bytes(5000),
    "ones": b"\xff" * 5000,
    "noise": random.Random(3).randbytes(9000),
    "blank": b"\n" * 9,
    "deep": b"[" * 100_000,
    "deep-object": b'{"step":1,"a":' * 50_000,
    "odd-state": b'{"log_history": [[], {"step": {}}, {"step": 1, "loss": {"a": NaN}}]}',
    "log-in-log": (
        b'{"step": NaN, "loss": 1}\n{"step": 1e400, "loss": 1}\n{"step": -9223372036854775809, '
        b'"loss": 1}\n'
    ),
    "wide": b"step,"
    + b",".join(b"m%d" % k for k in range(30_000))
    + b"\n"
    + b"1," * 30_000
    + b"1\n",
    "quote": b'step,loss\n1,"' + b"x" * 300_000,
    "sqlite": b"SQLite format 3\0" + bytes(100),
    "wandb": b":W&B\xe1\xbe\x00" + b"\x01\x02\x03\x04\xff\xff\x01" * 9000,
    "digits": b'{"step": 1, "loss": ' + b"9" * 10_000 + b"}\n",
}


def check(facts: LogFacts, reader: ModuleType) -> None:
    assert facts.format == reader.NAME
    for series in facts.series:
        assert series.steps.dtype == np.int64
        assert series.values.dtype == np.float64
        assert len(series.steps) == len(series.values) > 0
        assert series.times_s is None or len(series.times_s) == len(series.steps)
        assert all(0 <= place < len(series.steps) for place in series.reasons)
        assert series.trust
        assert (
            series.name == DEFAULT.canonical(series.written_as) or series.written_as == "train_loss"
        )


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.NAME)
def test_a_reader_says_what_it_tells(reader: ModuleType) -> None:
    assert reader in FORMATS
    assert re.fullmatch(r"[a-z][a-z-]*", reader.NAME)
    for sentence in (reader.TELLS, reader.CANNOT):
        assert sentence[0].isupper() or sentence.startswith("`")
        assert sentence.endswith(".")


@pytest.mark.parametrize("path", ["tensorboard", "wandb/run-stepped.wandb", "lightning_logs", "mlflow/mlruns",
                                  "mlflow/mlflow.db", "trackio.db"])  # fmt: skip
def test_each_fixture_is_claimed_by_its_own_reader_and_well_formed(path: str) -> None:
    told = best(FORMATS, look(FIXTURES / path))
    assert told is not None
    assert told[1] >= 0.9
    reader = told[0]
    assert reader.NAME in path.replace("lightning_logs", "lightning-csv")
    facts = reader.read(FIXTURES / path, DEFAULT)
    check(facts, reader)  # type: ignore[arg-type]
    assert facts.problems == ()
    assert {series.name for series in facts.series} >= {"loss/mean"}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize(
    ("reader", "name"), list(zip(READERS, NAMES, strict=True)), ids=lambda one: str(one)[:20]
)
def test_hostile_content_becomes_facts_or_a_sentence(
    reader: ModuleType, name: str, content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    for target in (path, tmp_path):
        assert 0 <= reader.claims(look(target)) <= 1
        told = ""
        try:
            check(reader.read(target, DEFAULT), reader)
        except EvidenceError as error:
            told = error.message
        assert not told or str(tmp_path) in told
        assert content != LFS_POINTER or "Git-LFS pointer" in told or target != path


def test_keys_that_never_repeat_take_no_table_of_their_own(tmp_path: Path) -> None:
    lines = [f'{{"step": {k}, "key-{k}": {k}}}\n' for k in range(20_000)]  # as a table: 3.2 GB
    (tmp_path / "a.jsonl").write_text("".join(lines))
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    facts = jsonl.read(tmp_path / "a.jsonl", DEFAULT)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 400_000
    assert len(facts.series) == 20_000
    assert facts.series[7].steps.tolist() == [7]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.NAME)
def test_paths_that_are_no_files(reader: ModuleType, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in NAMES:
        (tmp_path / "folders" / name).mkdir(parents=True)
    os.symlink(tmp_path / "loop", tmp_path / "loop")
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe"))
    odd.mkdir()
    os.symlink(tmp_path, odd / "up")
    for path in ("pipe", "folder", "folders", "loop", "missing", odd.name):
        with pytest.raises(EvidenceError):
            reader.read(tmp_path / path, DEFAULT)
    for path in ("folder", "folders", odd.name):
        assert 0 <= reader.claims(look(tmp_path / path)) <= 1


@pytest.mark.parametrize("name", ["mlflow/mlflow.db", "trackio.db"])
@pytest.mark.parametrize("change", ["page", "cut", "longer"])
def test_a_database_that_lost_a_page_or_its_end_is_a_problem(
    tmp_path: Path, name: str, change: str
) -> None:
    data = bytearray((FIXTURES / name).read_bytes())
    if change == "page":
        data[len(data) // 2 : len(data) // 2 + 4096] = bytes(4096)
    path = tmp_path / Path(name).name
    path.write_bytes({"page": data, "cut": data[:-1], "longer": data + b"x" * 300}[change])
    told = best(FORMATS, look(path))
    assert told is not None
    problems = " ".join(told[0].read(path, DEFAULT).problems)
    assert ("damaged" if change == "page" else "expected") in problems
