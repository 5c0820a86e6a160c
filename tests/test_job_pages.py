"""The pages for the training job are true.

Their Python is run as one program, their tables are those of the code.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import ROOT, call

from spiketriage.readers.telemetry.run.sources import read_telemetry
from spiketriage.train.stabilizers import STABILIZERS
from spiketriage.wire.chain import METRICS, SERIES

PAGES = ROOT / "runbooks"
RECORD = (PAGES / "record.md").read_text(encoding="utf-8")
STABILIZING = (PAGES / "stabilizers.md").read_text(encoding="utf-8")


def blocks(page: str) -> list[str]:
    """The page's Python."""
    return re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def run(parts: list[str], names: dict[str, Any]) -> dict[str, Any]:
    """Execute the blocks, one after the other, as one program."""
    for number, part in enumerate(parts):
        exec(compile(part, f"block {number}", "exec"), names)
    return names


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the recording page's program leaves behind.

    Its last block saves and loads a generation.
    """
    folder = tmp_path_factory.mktemp("job")
    (folder / "run").mkdir()
    (folder / "run" / "config.json").write_text("{}")
    (folder / "code").mkdir()
    (folder / "code" / "train.py").write_text("")
    parts = blocks(RECORD)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        names = run(parts[:3], {})
        names["before"] = {name: one.clone() for name, one in names["model"].state_dict().items()}
        run(parts[3:], names)
    return {**names, "folder": folder}


def test_what_the_recording_page_leaves_is_a_run_for_every_command_without_settings(
    job: dict[str, Any],
) -> None:
    folder = job["folder"]
    inspected = call("inspect", "run", cwd=folder)
    assert "telemetry: spiketriage (0.98): loss/mean rank 0: 40 points" in inspected.stdout
    assert "checkpoint: spiketriage (0.97): step 40, complete" in inspected.stdout
    frozen = call("freeze", "run", "--json", cwd=folder)
    said = json.loads(frozen.stdout)
    # no generation is older than the spike: kept with a gap
    assert (frozen.returncode, said["data"]["onset"]) == (6, 30)
    triaged = call("triage", "run", "--json", cwd=folder)
    said = json.loads(triaged.stdout)
    assert "error" not in said, said
    findings = {row["name"]: row for row in reported(folder)["findings"]}
    assert (findings["finiteness"]["outcome"], findings["finiteness"]["where"]["step"]) == (
        "nonfinite",
        30,
    )
    assert findings["generation-digests"]["outcome"] == "agrees"


def reported(folder: Path) -> dict[str, Any]:
    """The report of the folder's only incident."""
    (report,) = (folder / "run").glob(".spiketriage/incidents/*/report/report.json")
    contents: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    return contents


def test_the_loop_of_the_recording_page_records_every_step_and_skips_the_broken_one(
    job: dict[str, Any],
) -> None:
    telemetry = read_telemetry(job["folder"] / "run" / "telemetry")
    assert telemetry.problems == ()
    records = telemetry.lineage(0)
    assert [record.step for record in records] == list(range(1, 41))
    assert [record.step for record in records if record.metrics["guard/skipped"]] == [30]
    assert job["num_skipped"] == 1
    assert math.isnan(records[29].metrics["loss/mean"])
    assert records[39].metrics["loss/mean"] < records[0].metrics["loss/mean"]
    # log(64) is the loss of a model that knows nothing of 64 tokens
    assert records[0].metrics["loss/mean"] == pytest.approx(math.log(64), abs=0.4)
    for name in (
        "grad/norm",
        "clip/threshold",
        "clip/coefficient",
        "update/norm",
        "rms_t/max",
        "lr",
        "optimizer/step",
    ):
        assert math.isfinite(records[39].metrics[name]), name
    stages = {link.stage for link in records[39].digests}
    assert {"ids", "params_before", "reduced_gradient", "optimizer", "params_after"} <= stages
    assert len(list((job["folder"] / "run" / "telemetry").glob("*.ring"))) == 1


def test_a_skipped_step_of_the_page_left_the_parameters_alone(job: dict[str, Any]) -> None:
    records = {
        one.step: one for one in read_telemetry(job["folder"] / "run" / "telemetry").lineage(0)
    }

    def params(step: int) -> dict[str, bytes]:
        return {
            link.key: value
            for link, value in records[step].digests.items()
            if link.stage == "params_before"
        }

    assert params(31) == params(30)
    assert params(32) != params(31)


def test_the_generation_of_the_page_brings_everything_back(job: dict[str, Any]) -> None:
    assert job["saved"].name == "step-000040"
    assert all(
        torch.equal(job["before"][name], one) for name, one in job["model"].state_dict().items()
    )
    assert job["guard"].state() == json.loads(json.dumps(job["state"].guard))


def test_the_loop_of_the_stabilizers_page_learns_and_its_attention_is_finite() -> None:
    names = run(blocks(STABILIZING), {})
    assert names["losses"][-1] < 0.5 * names["losses"][0]
    assert bool(names["mixed_BHTK"].isfinite().all())
    # Nothing to attend to but itself: the first position's output is its own value.
    torch.testing.assert_close(names["mixed_BHTK"][:, :, 0], names["v_BHTK"][:, :, 0])


def test_the_table_of_signals_is_that_of_the_chain() -> None:
    rows = re.findall(r"^\| `([\w/]+)` \| (.*?) \| (.+) \|$", RECORD, re.MULTILINE)
    assert {name: unit for name, unit, _ in rows} == {**METRICS, **SERIES}
    assert [name for name, _, _ in rows] == [*METRICS, *SERIES]


def test_every_stabilizer_has_its_traps_in_bring_up_order() -> None:
    rows = re.findall(r"^\| ([\w-]+) \| .{40,} \|$", STABILIZING, re.MULTILINE)
    assert rows == [member.name for member in STABILIZERS]


def test_ten_lines_are_ten() -> None:
    marked = [int(found) for found in re.findall(r"#.*?\b(\d+)$", blocks(RECORD)[1], re.MULTILINE)]
    assert marked == list(range(1, 11))


def test_every_path_of_the_pages_exists() -> None:
    paths = {
        found
        for page in (RECORD, STABILIZING)
        for found in re.findall(r"python (tests/[\w./]+)", page)
    }
    assert paths
    assert [path for path in paths if not Path(ROOT / path).is_file()] == []
