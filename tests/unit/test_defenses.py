"""`spiketriage defenses`.

What real configurations, runs and sources say, and that nothing else is claimed.
"""

from __future__ import annotations

import importlib
import json
import math
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import ROOT, call
from hypothesis import given, settings
from hypothesis import strategies as st
from run_folder import write_run
from trainer_configs import CONFIGS

from spiketriage.defenses import command as defenses
from spiketriage.defenses.calls import from_calls, import_line
from spiketriage.defenses.keys import KEYS, from_settings
from spiketriage.defenses.signals import from_scaler, from_steps, from_tensors
from spiketriage.defenses.weigh import Evidence, weigh
from spiketriage.errors import EvidenceError, RefusedError, SpiketriageError, UsageError
from spiketriage.nouns.telemetry import StepRecord
from spiketriage.practice.rehearsal.trainer.config import ALWAYS, OPTIONAL
from spiketriage.readers.config_file import flattened, read_config
from spiketriage.readers.source_calls import read_calls
from spiketriage.train.stabilizers import STABILIZERS

NAMES = [member.name for member in STABILIZERS]


def states(evidence: list[Evidence]) -> dict[str, str]:
    """State by name, without the unknown ones."""
    weighed = weigh(evidence)
    assert [state.stabilizer.name for state in weighed] == NAMES
    known = [state for state in weighed if state.status != "unknown"]
    assert all(state.because for state in known)
    return {
        state.stabilizer.name: state.status if state.is_needed else "not needed" for state in known
    }


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_is_read_as_its_project_means_it(name: str, tmp_path: Path) -> None:
    config, expected = CONFIGS[name]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    result = defenses.run(str(path), selectable=OPTIONAL, built_in=ALWAYS)
    rows = {
        row["name"]: row["status"] if row["needed"] else "not needed"
        for row in result.data["defenses"]
    }
    assert {name: state for name, state in rows.items() if state != "unknown"} == expected
    assert result.exit_code == (0 if expected else 5)


def test_each_stabilizer_in_bring_up_order_has_keys_or_says_why_not_and_lifts_what_exists() -> None:
    seen = [member.name for member in STABILIZERS if not member.unseen]
    assert list(KEYS) == seen
    for member in STABILIZERS:
        module = importlib.import_module(f"spiketriage.train.{member.module}")
        assert member.lifts
        assert [name for name in member.lifts if not callable(getattr(module, name, None))] == []
        exec(import_line(member.name), {})
    assert [name for name in seen if name not in ALWAYS] == list(OPTIONAL)
    assert {*ALWAYS} <= {*seen}


def test_the_evidence_names_key_value_and_file(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text("[training]\nmax_norm = 0.5\n")
    result = defenses.run(str(path), selectable=(), built_in=())
    assert any(
        "training.max_norm = 0.5 (recipe.toml)" in line and " on " in line for line in result.lines
    )


def test_what_a_run_shows_beats_what_it_wrote_down_and_the_other_is_told() -> None:
    found = from_settings(flattened({"max_grad_norm": 0}, "config.json"), "config")
    assert states(found) == {"global-clip": "off"}
    found += from_steps([step(1, {"clip/threshold": 1.0})])
    assert states(found) == {"global-clip": "on"}
    (clip,) = [one for one in weigh(found) if one.stabilizer.name == "global-clip"]
    assert clip.because == (
        "clip/threshold = 1 (telemetry, step 1)",
        "but max_grad_norm = 0 (config.json)",
    )


def step(number: int, metrics: dict[str, float], **series: tuple[float, ...]) -> StepRecord:
    return StepRecord(
        attempt=0,
        rank=0,
        step=number,
        metrics=metrics,
        digests={},
        nonfinite=(),
        ids=None,
        content={},
        series={name.replace("__", "/"): values for name, values in series.items()},
        wall_time_s=0.0,
    )


@pytest.mark.parametrize(
    ("rates", "first", "expected"),
    [
        ([0.1 * min(n, 10) for n in range(1, 31)], 1, {"schedule": "on"}),
        ([1.0] * 30, 1, {"schedule": "off"}),
        ([1.0] * 30, 500, {}),  # it may have warmed up before the log begins
        ([1.0 - 0.01 * n for n in range(30)], 1, {}),  # a decay is no warm-up, and no constant rate
        ([1.0] * 5, 1, {}),
        ([math.nan] * 30, 1, {}),
    ],
)
def test_a_warm_up_is_seen_in_the_rate(
    rates: list[float], first: int, expected: dict[str, str]
) -> None:
    assert (
        states(from_steps([step(first + n, {"lr": rate}) for n, rate in enumerate(rates)]))
        == expected
    )


def test_a_loss_scale_that_moves_is_one_and_a_constant_one_is_not_known() -> None:
    def seen(*values: float) -> dict[str, str]:
        return states(
            from_steps([step(n, {"loss_scale": value}) for n, value in enumerate(values)])
        )

    assert seen(65536.0, 32768.0) == {"loss-scale": "on"}
    assert seen(1.0, 1.0) == {"loss-scale": "off"}
    assert seen(1024.0, 1024.0) == {}
    assert states(from_scaler({"scale": 1024.0}, "a")) == {"loss-scale": "on"}
    assert states(from_scaler({"scale": 1.0}, "a")) == {}
    assert seen(1.0) | states(from_settings(flattened({"bf16": True}, "c"), "config")) == {
        "loss-scale": "not needed"
    }


def test_experts_norms_and_scales_leave_traces() -> None:
    assert states(from_tensors(["layers.0.self_attn.q_norm.weight", "moe.experts.0.w1"], "g")) == {
        "qk-norm": "on"
    }
    assert states(from_tensors(["layers.0.mlp.gate_proj.weight"], "g")) == {
        "router-balance": "not needed"
    }
    assert states(from_tensors([], "g")) == {}
    assert states(from_steps([step(1, {}, fp8__scale=(2.0,), moe__load=(3.0, 1.0))])) == {
        "fp8-scaling": "on"
    }
    assert states(from_steps([step(1, {}, moe__bias=(0.0, -0.001))])) == {"router-balance": "on"}
    assert states(from_steps([step(1, {}, moe__bias=(0.0, 0.0), moe__load=(1.0, 1.0))])) == {}


def test_a_run_of_ours_is_judged_by_telemetry_manifest_and_config(tmp_path: Path) -> None:
    result = defenses.run(str(write_run(tmp_path / "run")), selectable=OPTIONAL, built_in=ALWAYS)
    rows = {row["name"]: row for row in result.data["defenses"]}
    # run_folder.py: HPARAMS with clip/threshold 1.0, a schedule of 20 steps of warm-up, tensors
    # without experts
    assert rows["global-clip"]["status"] == rows["schedule"]["status"] == "on"
    assert (rows["router-balance"]["status"], rows["router-balance"]["needed"]) == ("off", False)
    assert rows["z-loss"]["status"] == rows["softcap"]["status"] == "unknown"
    assert {"config.json", "step-000120/MANIFEST.json"} <= {*result.data["read"]}
    assert result.data["not_read"] == []


def test_a_damaged_part_costs_only_itself(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (run / "config.json").write_text("{")
    (run / "checkpoints" / "step-000120" / "MANIFEST.json").write_bytes(b"\xff")
    result = defenses.run(str(run), selectable=(), built_in=())
    assert len(result.data["not_read"]) == 2
    assert {row["name"]: row["status"] for row in result.data["defenses"]}["global-clip"] == "on"


def test_a_run_of_hugging_face_s_trainer_is_read_without_its_pickle_being_loaded() -> None:
    result = defenses.run(
        str(ROOT / "fixtures" / "hf" / "checkpoint-4"), selectable=(), built_in=()
    )
    rows = {row["name"]: row for row in result.data["defenses"]}
    assert rows["global-clip"]["because"] == [
        "max_grad_norm = 1.0 (checkpoint-4/training_args.bin)"
    ]
    assert (rows["schedule"]["status"], rows["loss-scale"]["needed"]) == ("off", False)


SOURCE = """
import torch
import torch.nn.functional as F
from torch.nn.utils import clip_grad_norm_ as shorten
from spiketriage.train.stabilizers import qk_norm, softcap
from spiketriage.train.stabilizers.cross_entropy import cross_entropy_sum
from .parts import anything

def factory(context):
    shorten(context.parameters, 1.0)
    cross_entropy_sum(1, 2)
    if context.deep:
        qk_norm.QKNorm(4)
    F.cross_entropy(1, 2)
"""


def test_a_source_is_read_and_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "__init__.py").write_text("raise SystemExit('it was run')\n")
    (tmp_path / "job" / "harness.py").write_text(SOURCE)
    (tmp_path / "job" / "parts.py").write_text(
        "from spiketriage.train.stabilizers.softcap import cap_logits\nx = cap_logits(1, 2)\n"
    )
    monkeypatch.chdir(tmp_path)
    result = defenses.run("job.harness:factory", selectable=(), built_in=())
    rows = {row["name"]: row for row in result.data["defenses"]}
    assert {name: row["status"] for name, row in rows.items() if row["status"] != "unknown"} == {
        "global-clip": "on",
        "softcap": "on",
    }
    assert rows["global-clip"]["because"] == [
        "clip_grad_norm_ is called under no condition (harness.py:10)"
    ]
    assert rows["qk-norm"]["because"] == ["QKNorm is called under a condition (harness.py:13)"]
    assert rows["z-loss"]["because"] == [
        "cross_entropy_sum is called without z_coefficient (harness.py:11)"
    ]


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("torch.nn.utils.clip_grad_norm_(p, 1.0)", "on"),
        ("torch.nn.utils.clip_grad_norm_(p, max_norm=0.5)", "on"),
        (
            "torch.nn.utils.clip_grad_norm_(p, float('inf'))",
            "unknown",
        ),  # how people measure the norm
        ("torch.nn.utils.clip_grad_norm_(p, args.clip)", "unknown"),
        ("x and torch.nn.utils.clip_grad_norm_(p, 1.0)", "unknown"),
        ("clip_grad_norm_(p, 1.0)", "unknown"),  # somebody's own
    ],
)
def test_a_call_counts_only_where_it_surely_clips(line: str, status: str, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(f"import torch\n{line}\n")
    _, calls = read_calls("job", [tmp_path])
    (clip,) = [one for one in weigh(from_calls(calls)) if one.stabilizer.name == "global-clip"]
    assert clip.status == status


HOSTILE = {
    "deep.json": b"[" * 100_000,
    "deep-sections.json": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "list.json": b"[1]",
    "latin.json": b'{"a": "\xe9"}',
    "digits.json": b'{"max_grad_norm": ' + b"9" * 5000 + b"}",
    "broken.toml": b"[a\n",
    "broken.py": b"def (",
    "deep.py": b"x = " + b"(" * 500 + b"1" + b")" * 500,
    "nul.py": b"x = 1\0",
    "unknown.bin": b"\x00\x01\x02\x03",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_is_not_what_it_says_is_one_sentence(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(HOSTILE[name])
    with pytest.raises(EvidenceError, match=name) as told:
        defenses.run(str(tmp_path / name), selectable=(), built_in=())
    assert "\n" not in told.value.message


def test_values_that_python_cannot_write_out_are_told_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "big.toml").write_text(f"max_grad_norm = 0x{'f' * 9000}\n")
    result = defenses.run(str(tmp_path / "big.toml"), selectable=(), built_in=())
    assert (
        "max_grad_norm = a int too large to show (big.toml)"
        in result.data["defenses"][5]["because"]
    )


def test_yaml_is_refused_with_the_line_that_converts_it(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("max_grad_norm: 1.0\n")
    with pytest.raises(RefusedError, match="YAML") as told:
        read_config(tmp_path / "recipe.yaml")
    assert "yaml.safe_load" in told.value.hint


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        ("x" * 400, EvidenceError),
        ("nope", EvidenceError),
        ("no.such:factory", RefusedError),
        ("a\0b", UsageError),
    ],
)
def test_a_target_that_is_not_there(
    target: str, kind: type[SpiketriageError], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind):
        defenses.run(target, selectable=(), built_in=())


KEY_PARTS = sorted(
    {part for keys in KEYS.values() for key in keys for part in key.lstrip("/").split(".")}
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["fp8", "bf16", "auto"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*KEY_PARTS, "enabled", "callbacks"]) | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(config=st.dictionaries(st.sampled_from(KEY_PARTS) | st.text(max_size=5), VALUES, max_size=8))
def test_whatever_a_configuration_holds_each_verdict_rests_on_a_key_in_it(
    config: dict[str, Any],
) -> None:
    flat = flattened(config, "c")
    verdicts = weigh(from_settings(flat, "config", selectable=OPTIONAL))
    assert [one.stabilizer.name for one in verdicts] == NAMES
    for one in verdicts:
        assert one.status in ("on", "off", "unknown")
        assert one.status == "unknown" or one.because
        known = [f"{setting.name:.80} = " for setting in flat]
        assert all(any(text.startswith(name) for name in known) for text in one.because)
    if not any({*setting.keys} & {*KEY_PARTS, "stabilizers"} for setting in flat):
        assert {one.status for one in verdicts} == {"unknown"}


@settings(max_examples=60, deadline=None)
@given(
    data=st.binary(max_size=60) | st.text(max_size=60).map(str.encode),
    suffix=st.sampled_from([".json", ".toml", ".py"]),
)
def test_any_bytes_are_settings_or_a_sentence(
    data: bytes, suffix: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / f"any{suffix}"
    path.write_bytes(data)
    with suppress(SpiketriageError):  # anything else is a bug
        assert len(
            defenses.run(str(path), selectable=OPTIONAL, built_in=ALWAYS).data["defenses"]
        ) == len(NAMES)


def test_an_off_that_a_later_one_calls_needless_is_not_needed() -> None:
    seen = Evidence(stabilizer="loss-scale", mark="off", layer="seen", text="a", where="b")
    assert states([seen]) == {"loss-scale": "off"}
    assert states([seen, replace(seen, mark="unneeded", layer="recorded")]) == {
        "loss-scale": "not needed"
    }


# The command
# ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_prints_the_list_in_order_and_what_to_do_next(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"qk_layernorm": false, "clip_grad": 1.0}')
    done = call("defenses", "config.json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    heads = [line.split()[:3] for line in done.stdout.splitlines() if line[:2].strip().isdecimal()]
    assert [head[-1] for head in heads] == NAMES
    told = "spiketriage rehearse --fault healthy --stabilizer qk-norm --out run-with-qk-norm"
    assert done.stdout.endswith(f"next: {told}\n")
    assert f"    rehearse  {told}\n" in done.stdout
    assert "    import    from spiketriage.train.stabilizers.qk_norm import QKNorm\n" in done.stdout


@pytest.mark.slow
def test_the_envelope_and_the_exit_codes(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    nothing = call("defenses", "config.json", "--json", cwd=tmp_path)
    envelope = json.loads(nothing.stdout)
    assert (nothing.returncode, envelope["exit"], envelope["schema"]) == (
        5,
        5,
        "spiketriage.defenses/1",
    )
    assert [row["name"] for row in envelope["data"]["defenses"]] == NAMES
    missing = call("defenses", "absent", "--json", cwd=tmp_path)
    assert (missing.returncode, json.loads(missing.stdout)["error"]["code"]) == (4, "evidence")


@pytest.mark.slow
def test_the_rehearsal_is_planned_with_the_stabilizers_that_were_asked_for(tmp_path: Path) -> None:
    plant = (
        "from spiketriage.errors import UsageError\nNAME, CAUSE = 'x', None\ndef plant(stage):\n"
    )
    (tmp_path / "told.py").write_text(
        f"{plant}    raise UsageError(str(stage.config.stabilizers))\n"
    )
    words = (
        "rehearse",
        "--fault",
        "told.py",
        "--out",
        "run",
        "--stabilizer",
        "z-loss",
        "--stabilizer",
        "scaled-init",
    )
    done = call(*words, cwd=tmp_path)
    assert (done.returncode, done.stderr.strip()) == (2, "('z-loss', 'scaled-init')")
    refused = call(*words[:-1], "moe", cwd=tmp_path)
    assert refused.returncode == 2
    assert "no stabilizer 'moe' can be turned on here" in refused.stderr
    assert not (tmp_path / "run").exists()
