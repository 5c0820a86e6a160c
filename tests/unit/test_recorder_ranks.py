"""Real ranks over gloo.

What they record of sharded parameters is what one process would say of the whole ones.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from recorder_ranks import MAX_NORM, fresh, inputs
from recording import ROOT

from spiketriage.digests import of_bytes
from spiketriage.nouns.telemetry import Link, Segment
from spiketriage.readers.telemetry.stores.native import read_segment

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, str(ROOT / "tests" / "recorder_ranks.py")]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"}
Segments = dict[str, list[Segment]]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Segments:
    folder = tmp_path_factory.mktemp("ranks")
    command = [*COMMAND, str(folder), "layouts"]
    done = subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return {
        name: [
            read_segment(folder / name / f"rank-{rank:05d}.attempt-000.seg") for rank in range(4)
        ]
        for name in ("ddp", "fsdp", "plain", "tensor")
    }


def whole_run() -> list[dict[str, float]]:
    """The same two steps in one process, in float64."""
    model = fresh().double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    truth = []
    for number in (1, 2):
        sum(
            model(inputs(rank, number).double()).square().mean() / 4 for rank in range(4)
        ).backward()
        norm = math.sqrt(sum(float(one.grad.square().sum()) for one in model.parameters()))
        before = [one.detach().clone() for one in model.parameters()]
        for one in model.parameters():
            one.grad.mul_(min(1.0, MAX_NORM / (norm + 1e-6)))
        optimizer.step()
        pairs = zip(model.parameters(), before, strict=True)
        change = sum(float((one.detach() - old).square().sum()) for one, old in pairs)
        ratios = [
            float((one.grad.square() / (state["exp_avg_sq"] / (1 - 0.999**number))).mean().sqrt())
            for one, state in ((one, optimizer.state[one]) for one in model.parameters())
        ]
        truth.append(
            {"grad/norm": norm, "update/norm": math.sqrt(change), "rms_t/max": max(ratios)}
        )
        optimizer.zero_grad()
    return truth


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_global_quantities_are_those_of_the_whole_model_on_every_rank(
    recorded: Segments, name: str
) -> None:
    for number, expected in enumerate(whole_run()):
        seen = [{key: one.steps[number].metrics[key] for key in expected} for one in recorded[name]]
        assert seen[0] == pytest.approx(expected, rel=1e-4)
        assert all(one == seen[0] for one in seen)


def test_local_gradients_under_ddp_are_seen_before_the_reduction(recorded: Segments) -> None:
    for rank, segment in enumerate(recorded["ddp"]):
        model = fresh().double()
        (model(inputs(rank, 1).double()).square().mean() / 4).backward()
        norm = math.sqrt(sum(float(one.grad.square().sum()) for one in model.parameters()))
        assert segment.steps[0].metrics["grad/norm_local"] == pytest.approx(norm, rel=1e-5)


def test_fsdp_says_that_the_local_gradient_is_not_to_be_had(recorded: Segments) -> None:
    for segment in recorded["fsdp"]:
        assert [
            "grad/norm_local" in notice.text for notice in segment.notices if notice.kind == "off"
        ] == [True]


def test_shards_are_digested_under_their_mesh_coordinates_and_replicas_agree(
    recorded: Segments,
) -> None:
    links = [segment.steps[0].digests for segment in recorded["fsdp"]]
    weight = fresh()[0].weight.detach()
    for rank, digests in enumerate(
        links
    ):  # ranks (0, 1) and (2, 3) are the replicas; FSDP cuts 5 rows into 3 and 2
        shard = weight[:3] if rank % 2 == 0 else weight[3:]
        expected = of_bytes(shard.contiguous().numpy().tobytes())
        assert digests[Link("params_before", f"0.weight@shard={rank % 2}")].hex() == expected
        assert {link.key.partition("@")[2] for link in digests if link.stage == "params_after"} == {
            f"shard={rank % 2}"
        }
    for left, right in ((0, 2), (1, 3)):
        ends = [
            {link: value for link, value in links[rank].items() if link.stage != "optimizer"}
            for rank in (left, right)
        ]
        assert ends[0] == ends[1]


def test_tensor_parallel_and_replicated_parameters_together(recorded: Segments) -> None:
    model = fresh()
    norm = math.sqrt(sum(float(one.detach().double().square().sum()) for one in model.parameters()))
    for rank, segment in enumerate(recorded["tensor"]):
        metrics = segment.steps[0].metrics
        assert metrics["grad/norm"] == pytest.approx(norm, rel=1e-6)
        assert metrics["update/norm"] == pytest.approx(norm / 2, rel=1e-6)
        keys = {link.key for link in segment.steps[0].digests if link.stage == "params_before"}
        assert keys == {
            f"0.weight@shard={rank % 2}",
            f"2.weight@shard={rank % 2}",
            "0.bias",
            "2.bias",
        }


def test_plain_tensors_that_hold_a_shard_count_once_over_their_group(recorded: Segments) -> None:
    model = fresh()
    whole = [model[0].weight, model[2].weight, model[0].bias]
    norm = math.sqrt(sum(float(one.detach().double().square().sum()) for one in whole))
    assert [one.steps[0].metrics["grad/norm"] for one in recorded["plain"]] == pytest.approx(
        [norm] * 4, rel=1e-6
    )
    expected = [float(one.detach().double().norm()) for one in whole]
    assert recorded["plain"][3].steps[0].series["grad/norm_per_tensor"] == pytest.approx(
        expected, rel=1e-6
    )


def test_alerts_arrive_while_a_collective_hangs_and_while_the_telemetry_disk_stalls(
    tmp_path: Path,
) -> None:
    with subprocess.Popen(
        [*COMMAND, str(tmp_path), "hang"],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        start_new_session=True,
    ) as job:
        found: dict[str, dict[str, object]] = {}
        try:
            while len(found) < 2 and job.poll() is None:
                time.sleep(0.05)
                found = arrived(tmp_path / "alerts")
            assert job.poll() is None  # it hangs still
        finally:
            os.killpg(job.pid, 9)
    assert set(found) == {"step-stalled/0", "telemetry-stalled/0"}
    stalled = found["step-stalled/0"]
    assert (stalled["step"], stalled["rank"], stalled["run"]) == (60, 0, "hung")
    assert "last stage local_gradient" in str(stalled["summary"])
    assert stalled["next_command"] == "spiketriage status"


def arrived(path: Path) -> dict[str, dict[str, object]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {
        alert["key"]: alert for alert in (json.loads(line) for line in lines if line.endswith("}"))
    }
