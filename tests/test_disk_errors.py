"""A disk that fails: every command ends with a sentence and a code, and nothing recorded is lost.

Real commands with a shim between them and the system, compiled here; no disk is harmed.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from command_line import ROOT, call
from killing import recorded
from run_folder import write_run

pytestmark = pytest.mark.slow
STEPS = ("hash", "check", "bisect", "report")
OF_THE_RUN = ("telemetry/*", "checkpoints/step-000080/*", "logs/*", "data/*", "*.toml", "code/*")
OF_THE_INCIDENT = ("*.duckdb*", "evidence/*", "report/*", "lease*")
FAILURES = ("read", "write", "sync")


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    library = tmp_path_factory.mktemp("shim") / "disk_errors.so"
    source = ROOT / "tests" / "disk_errors.c"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return library


def failing(shim: Path, failure: str, files: str, *words: str) -> None:
    """One command while every `failure` on files of this pattern ends with EIO."""
    env = {"LD_PRELOAD": str(shim), "DISK_ERROR_CALL": failure, "DISK_ERROR_FILES": files}
    done = call(*words, cwd=shim.parent, env=env)
    assert done.returncode in (0, 1, 3, 4, 5, 6, 8), f"{failure} {files}: {done.stderr}"
    if done.returncode in (3, 4, 6):
        assert "nput/output error" in done.stdout + done.stderr or "fsync failed" in done.stderr


def test_the_shim_reaches_the_children(shim: Path, tmp_path: Path) -> None:
    """What follows rests on it."""
    run = write_run(tmp_path / "run", spike_at=110)
    env = {
        "LD_PRELOAD": str(shim),
        "DISK_ERROR_CALL": "read",
        "DISK_ERROR_FILES": f"{run}/logs/*",
    }
    done = call("freeze", str(run), cwd=tmp_path, env=env)
    assert done.returncode == 6
    assert "gap: logs/rank-00000.log: cannot be read: Input/output error" in done.stdout


@pytest.mark.parametrize(
    ("failure", "files"),
    [
        *[("read", files) for files in OF_THE_RUN],
        *[("read", f".spiketriage/*/{files}") for files in OF_THE_INCIDENT],
        *[("write", f".spiketriage/*/{files}") for files in OF_THE_INCIDENT],
        *[("sync", f".spiketriage/*/{files}") for files in OF_THE_INCIDENT],
    ],
)
def test_a_freeze_that_met_a_failing_disk_is_finished_by_the_next(
    failure: str, files: str, shim: Path, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", spike_at=110)
    failing(shim, failure, f"{run}/{files}", "freeze", str(run))
    for words in (("freeze",), ("hash",), ("verify", "--deep")):
        done = call(words[0], str(run), *words[1:], cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr


def test_no_step_on_a_failing_disk_loses_what_was_recorded(shim: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", spike_at=110)
    assert call("freeze", str(run), cwd=tmp_path).returncode == 0
    for step in STEPS:
        for failure in FAILURES:
            for files in OF_THE_INCIDENT:
                before = recorded(run)
                failing(shim, failure, f"{run}/.spiketriage/*/{files}", step, str(run))
                after = recorded(run)
                for table, rows in before.items():
                    assert after[table][: len(rows)] == rows, f"{step} lost rows of {table}"
        assert call(step, str(run), cwd=tmp_path).returncode in (0, 1, 4, 5)
    verified = call("verify", str(run), "--deep", cwd=tmp_path)
    assert verified.returncode == 0, verified.stdout


@pytest.mark.parametrize("command", ["status", "verify", "inspect"])
def test_whoever_only_looks_at_a_failing_disk_is_told(
    command: str, shim: Path, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", spike_at=110)
    assert call("freeze", str(run), cwd=tmp_path).returncode == 0
    for files in (*OF_THE_RUN, *(f".spiketriage/*/{name}" for name in OF_THE_INCIDENT)):
        failing(shim, "read", f"{run}/{files}", command, str(run))
