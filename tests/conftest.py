"""Options of the test command that rewrite what is on record, and the two real runs that tests share.

Each run is rehearsed once by the real command, whichever worker asks first; tests read it, and work
on a copy or keep incidents elsewhere.
"""

from __future__ import annotations

import fcntl
import os
import pickle
from pathlib import Path

import pytest
from rehearsed import Rehearsed, planted, rehearse


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-runbooks", action="store_true", help="rewrite the output shown in runbooks/*.md"
    )
    parser.addoption(
        "--update-surface", action="store_true", help="rewrite fixtures/cli-surface.txt"
    )


@pytest.fixture(scope="session")
def bitrot_run(tmp_path_factory: pytest.TempPathFactory) -> Rehearsed:
    """A run whose shards rotted at rest."""
    return _shared(tmp_path_factory.getbasetemp(), "first", "shard-bitrot", 106)


@pytest.fixture(scope="session")
def flip_run(tmp_path_factory: pytest.TempPathFactory) -> Rehearsed:
    """A run in which one bit of a weight flipped."""
    return _shared(tmp_path_factory.getbasetemp(), "second", "weight-bit-flip", 110)


def _shared(folder: Path, name: str, fault: str, seed: int) -> Rehearsed:
    """The run of that name, made under a lock, so that no other worker makes it again."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    run, told = folder / name / "run", folder / f"{name}.pickle"
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not told.exists():
            run.parent.mkdir()
            told.write_bytes(pickle.dumps(rehearse(fault, seed, run).told))
    return Rehearsed(
        folder=run, fault=fault, stage=planted(fault, seed), told=pickle.loads(told.read_bytes())
    )
