"""Options of the test command that rewrite what is on record, and the two real runs that tests share.

Each run is rehearsed once by the real command, whichever worker asks first; tests read it, and work
on a copy or keep incidents elsewhere.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import pickle
import re
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from rehearsed import Rehearsed

MISSING = re.compile(
    r"No module named '(torch|transformers|accelerate|lightning|tensorboard|dask|distributed)\b"
)
# What rehearses a run, and whole files whose tests start commands, ranks or frameworks by the dozen: they are
# left out of the fast tier, `pytest -m "not slow"`, which takes at most 90 s on two cores.
REHEARSED = {"bitrot_run", "flip_run"}
SLOW_FILES = {
    "test_adding.py",
    "test_bare_environment.py",
    "test_check.py",
    "test_cluster.py",
    "test_end_to_end.py",
    "test_foreign_runs.py",
    "test_freeze.py",
    "test_generation_ranks.py",
    "test_generation_save.py",
    "test_guard_ranks.py",
    "test_hash.py",
    "test_incident_kill.py",
    "test_job_pages.py",
    "test_kill.py",
    "test_plain_loop.py",
    "test_real_stacks.py",
    "test_recorder_crash.py",
    "test_recorder_ranks.py",
    "test_rehearsal.py",
    "test_rehearsal_defenses.py",
    "test_rehearsal_model.py",
    "test_runbooks.py",
    "test_stabilizers_ranks.py",
    "test_unknown_files.py",
}


def pytest_configure() -> None:
    """Keep what tests trust out of the home of whoever runs them; every worker shares one folder."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        folder = tempfile.mkdtemp(prefix="state-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ["XDG_STATE_HOME"] = folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what rests on a rehearsed run, and the files above."""
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if item.path.name in SLOW_FILES or fixtures & REHEARSED:
            item.add_marker(pytest.mark.slow)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-runbooks", action="store_true", help="rewrite the output shown in runbooks/*.md"
    )
    parser.addoption(
        "--update-surface",
        action="store_true",
        help="rewrite fixtures/cli-surface.txt and the generated tables in docs/",
    )
    parser.addoption(
        "--without-torch",
        action="store_true",
        help="skip what needs torch or a framework, where none is installed",
    )


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """With `--without-torch`, a file that cannot be imported for want of torch is skipped and not an error."""
    report = yield
    if report.failed and collector.config.getoption("--without-torch"):
        missing = MISSING.search(str(report.longrepr))
        if missing:
            report.outcome = "skipped"
            report.longrepr = (str(collector.path), None, f"Skipped: needs {missing[1]}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With `--without-torch`, a test that fails for want of torch, here or in a child, is skipped."""
    report = yield
    if report.failed and item.config.getoption("--without-torch"):
        missing = MISSING.search(str(report.longrepr))
        if missing:
            report.outcome = "skipped"
            report.longrepr = (str(item.path), None, f"Skipped: needs {missing[1]}")
    return report


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
    from rehearsed import Rehearsed, planted, rehearse  # which needs torch

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
