"""Settings of a run.

What is absent has a default, what is wrong is refused, what is no run is named.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from command_line import call
from run_folder import TOML, write_run

from spiketriage.diagnosis import launch
from spiketriage.errors import EvidenceError, UsageError
from spiketriage.readers.settings import LAUNCH_KINDS, read_settings
from spiketriage.readers.telemetry.run.sources import read_telemetry
from spiketriage.readers.telemetry.series.names import Names


def test_settings_are_absolute_and_complete(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    settings = read_settings(Path("run"))
    assert settings.run == run
    assert settings.run_id == "tiny"
    assert settings.telemetry == run / "telemetry"
    assert settings.data_index == run / "data" / "index.json"
    assert settings.logs == (run / "logs",)
    assert settings.python_path == (str(run / "code" / "r2"),)
    assert settings.num_processes == 2


def test_an_absent_default_is_none_and_a_stated_path_is_kept(tmp_path):
    (tmp_path / "spiketriage.toml").write_text(
        'schema = 1\n[run]\nid = "x"\nconfig = "elsewhere.json"\n'
    )
    settings = read_settings(tmp_path)
    assert settings.data_index is None
    assert settings.code is None
    assert settings.config == tmp_path / "elsewhere.json"
    assert settings.num_processes == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TOML + "surprise = 1\n", "surprise"),
        (TOML.replace("nproc_per_node = 2", 'nproc_per_node = "many"'), "nproc_per_node"),
        (TOML.replace('kind = "torchrun"', 'kind = "slurm"'), "launch.kind.*'slurm'.*torchrun"),
        (TOML.replace("schema = 1", "schema = 2"), "schema"),
        (TOML.replace('id = "tiny"', ""), "id"),
        ("schema = ", "TOML"),
        ("", "schema"),
    ],
)
def test_a_wrong_file_is_a_usage_error_that_names_the_key(tmp_path, text, words):
    (tmp_path / "spiketriage.toml").write_text(text)
    with pytest.raises(UsageError, match=rf"spiketriage\.toml.*{words}") as caught:
        read_settings(tmp_path)
    assert caught.value.exit_code == 2


def test_each_kind_of_launch_that_is_taken_can_start_trials():
    assert [kind for kind in LAUNCH_KINDS if kind not in launch.LAUNCHERS] == []


def test_a_launch_that_is_not_built_is_refused_by_every_step_with_the_line_to_write(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "spiketriage.toml").write_text(
        TOML.replace('kind = "torchrun"', 'kind = "slurm"'), encoding="utf-8"
    )
    refused = call("freeze", str(run), cwd=tmp_path)
    assert refused.returncode == 2
    assert "trials cannot be started by 'slurm'" in refused.stderr
    assert "hint: write kind = 'torchrun'" in refused.stderr


def test_text_that_is_not_utf8_is_a_usage_error(tmp_path):
    (tmp_path / "spiketriage.toml").write_bytes(b"schema = 1 # \xff\xfe")
    with pytest.raises(UsageError, match="UTF-8"):
        read_settings(tmp_path)


@pytest.mark.parametrize(
    "kind", ["missing", "empty", "file", "loop", "no settings", "settings loop"]
)
def test_what_is_not_a_run_folder_is_an_evidence_error_that_names_it(tmp_path, kind):
    run = tmp_path / "the-run"
    if kind == "file":
        run.write_text("")
    elif kind == "loop":
        run.symlink_to("the-run")
    elif kind != "missing":
        run.mkdir()
    if kind == "no settings":
        (run / "other").write_text("")
    elif kind == "settings loop":
        (run / "spiketriage.toml").symlink_to("spiketriage.toml")
    with pytest.raises(EvidenceError, match="the-run") as caught:
        read_settings(run)
    assert caught.value.exit_code == 4


def test_columns_say_what_their_log_calls_our_metrics(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    lines = [f'{{"update": {step}, "train/xent": {3 - step / 100}}}\n' for step in range(1, 41)]
    (tmp_path / "logs" / "train.jsonl").write_text("".join(lines))
    columns = '[columns]\nstep = "update"\n"loss/mean" = "train/xent"\n'
    (tmp_path / "spiketriage.toml").write_text(
        f'schema = 1\n[run]\nid = "theirs"\ntelemetry = "logs"\n{columns}'
    )
    found = read_settings(tmp_path)
    assert found.columns == {"update": "step", "train/xent": "loss/mean"}
    telemetry = read_telemetry(found.telemetry, Names(columns=found.columns))
    assert telemetry.steps == tuple(range(1, 41))
    record = telemetry.at(0, 40)
    assert record is not None
    assert record.metrics == {"loss/mean": 2.6}


def test_a_run_without_settings_is_what_is_found_in_it(tmp_path: Path) -> None:
    run = tmp_path / "their-run"
    run.mkdir()
    (run / "README").write_text("hello\n")
    with pytest.raises(
        EvidenceError,
        match=r"expected spiketriage\.toml, or a checkpoint or a log of a known format",
    ):
        read_settings(run)
    shutil.copytree(
        Path(__file__).parents[2] / "fixtures" / "dcp" / "plain" / "step_3",
        run / "checkpoints" / "step_3",
    )
    xid = "[Sun Feb 23 16:24:18 2025] NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.\n"
    (run / "dmesg.log").write_text(xid)
    found = read_settings(run)
    assert (found.run_id, found.telemetry, found.checkpoints, found.harness) == (
        "their-run",
        run,
        run,
        "",
    )
    assert found.logs == (run / "dmesg.log",)
