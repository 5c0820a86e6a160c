"""What the recorder left out or lost is told to whoever works on the incident.

By freeze, check, status and report.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command_line import call
from recording import IDENTITY
from torch import nn

from spiketriage.train.recording.layers import LayerStatistics
from spiketriage.train.recording.recorder import Recorder

NUM_STEPS = 50
ABOUT_NOTHING = "2 layers"  # a notice that only names series: no operator needs to read it


def record(folder: Path, rank: int) -> None:
    """Steps that do nothing but record: the recorder thins; the hooks never run.

    The disk is away for two steps.
    """
    tensors = {f"w{n}": torch.full((4096,), float(n)) for n in range(64)}
    with Recorder(
        folder, rank=rank, identity=replace(IDENTITY, world_size=2), patience_s=60
    ) as recorder:
        layers = LayerStatistics({"first": nn.Linear(2, 2), "last": nn.Linear(2, 2)}, recorder)
        kept = os.dup(recorder._file.descriptor)
        lost = os.open(os.devnull, os.O_RDONLY)  # writing to it fails, as a lost mount does
        for number in range(1, NUM_STEPS + 1):
            os.dup2(lost if rank == 1 and number in (7, 8) else kept, recorder._file.descriptor)
            with recorder.step(number) as step:
                step.log({"loss/sum": 8.0, "tokens/valid": 4.0, "grad/norm": 1.0})
                step.tensors("params_before", tensors)
                layers.record(step)
        os.close(kept)
        os.close(lost)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / "spiketriage.toml").write_text('schema = 1\n[run]\nid = "thin"\n')
    for rank in (0, 1):
        record(folder / "telemetry", rank)
    return folder


@pytest.mark.slow
def test_each_command_of_the_runbook_tells_what_the_recording_lacks(run: Path) -> None:
    for command in ("freeze", "check", "status", "report"):
        done = call(command, str(run), cwd=run)
        assert done.returncode in (0, 1, 6), done.stderr
        if command == "report":
            done.stdout = next(run.rglob("report.md")).read_text().replace("\\", "")
        told = [line for line in done.stdout.splitlines() if line.startswith(("note: ", "- "))]
        thinned = [
            line
            for line in told
            if "of step time, budget 1.00%: level 1: digest of each tensor" in line
        ]
        hooks = [
            line
            for line in told
            if "layer statistics of first, last: their hooks did not run" in line
        ]
        assert (len(thinned), len(hooks)) == (2, 1), (
            command,
            done.stdout,
        )  # the ranks' figures differ
        assert "rank 0 and 1 more" in hooks[0]
        assert (
            sum("rank-00001.attempt-000.seg: 2 records were dropped" in line for line in told) == 1
        )
        assert not any(ABOUT_NOTHING in line for line in told)


@pytest.mark.slow
def test_the_notes_are_data_too(run: Path) -> None:
    done = call("freeze", str(run), "--json", cwd=run)
    notes = json.loads(done.stdout)["data"]["notes"]
    assert notes[0] == "rank-00001.attempt-000.seg: 2 records were dropped while the run went on"
