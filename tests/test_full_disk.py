"""A disk that is full at any step: nothing that was recorded is lost, and the command says why.

Real commands on a small file system of its own that is filled before each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import call
from killing import recorded
from run_folder import write_run
from small_disk import filled, small_disk

pytestmark = pytest.mark.slow
STEPS = ("freeze", "hash", "check", "bisect", "report")
LEFT_BYTES = (0, 100_000, 1_500_000)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk") as mounted:
        yield mounted


def test_every_step_on_a_full_disk_keeps_what_was_there_and_goes_on_when_there_is_room(
    disk: Path,
) -> None:
    run = write_run(disk / "run", spike_at=110, rotten_document="doc-3")
    for step in STEPS:
        for left_bytes in LEFT_BYTES:
            before = recorded(run)
            with filled(disk, left_bytes=left_bytes):
                done = call(step, str(run), cwd=disk)
                assert call("status", str(run), cwd=disk).returncode == 0
            assert done.returncode in (0, 1, 3, 4, 5, 6), done.stderr
            if done.returncode == 6:
                assert "disk" in done.stdout + done.stderr
            after = recorded(run)
            for table, rows in before.items():
                assert after[table][: len(rows)] == rows, f"{step} lost rows of {table}"
        assert call(step, str(run), cwd=disk).returncode in (0, 1, 4, 5)
    verified = call("verify", str(run), "--deep", cwd=disk)
    assert verified.returncode == 0, verified.stdout
    folders = (run / ".spiketriage" / "incidents").rglob("*")
    assert [path for path in folders if path.name.startswith((".swap", ".new"))] == []
