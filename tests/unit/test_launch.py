"""Trials start from what was frozen or not at all, also where a file is too large for one piece."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import xxhash

from spiketriage.diagnosis import launch
from spiketriage.diagnosis.site import Site
from spiketriage.digests import PIECE_BYTES
from spiketriage.errors import CorruptFileError, TrialError
from spiketriage.wire.trial import Factors, Trial

NAME, FILE = "step-000080", "tensors/__0_0.distcp"


def test_a_large_generation_is_started_from_until_a_byte_of_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "LAUNCHERS", {"none": lambda *_words: ["false"]})
    large = tmp_path / NAME / FILE
    large.parent.mkdir(parents=True)
    large.touch()
    os.truncate(large, PIECE_BYTES + 1)
    pieces = xxhash.xxh3_128_digest(bytes(PIECE_BYTES)) + xxhash.xxh3_128_digest(b"\0")
    site = Site(
        run=tmp_path,
        trials=tmp_path / "trials",
        checkpoints=tmp_path,
        digests={NAME: {FILE: xxhash.xxh3_128_hexdigest(pieces)}},
        recorded={},
        harness="",
        launcher="none",
        codes={"deployed": tmp_path},
        num_processes=1,
        num_threads=1,
    )
    trial = Trial(
        kind="replay",
        purpose="control",
        factors=Factors(state=f"{NAME}@80"),
        first_step=81,
        last_step=82,
    )
    (site.trials / trial.key).mkdir(parents=True)
    with pytest.raises(TrialError, match="ended with exit code 1"):
        launch.execute(site, [trial])
    with large.open("r+b") as stream:
        stream.write(b"\1")
    with pytest.raises(CorruptFileError, match="is not what its frozen manifest says"):
        launch.execute(site, [trial])
