"""Generations as one process saves and loads them.

What comes back is what went in, or it is refused by name.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from spiketriage.digests import of_file
from spiketriage.errors import CorruptFileError, EvidenceError, PartialError, UsageError
from spiketriage.readers.checkpoints.native import read_generation
from spiketriage.train.generations.background_save import BackgroundSaver
from spiketriage.train.generations.generation import (
    Provenance,
    load_verified,
    newest_complete,
    newest_known_good,
    read_manifest,
    save,
)
from spiketriage.train.generations.module_state import capture, put
from spiketriage.train.generations.rank_state import RankState, digest_state
from spiketriage.train.generations.retention import Retention, retain
from spiketriage.train.recording import random_state

PROVENANCE = Provenance(
    hparams={"clip": 1.0},
    schedule={"kind": "constant"},
    code_path="code/r1",
    code_digest="0" * 32,
    config_digest="1" * 32,
    index_digest="2" * 32,
)


def state(step: int) -> RankState:
    generator = torch.Generator().manual_seed(step)
    weight = torch.randn(5, 3, generator=generator)
    return RankState(
        params={
            "w": weight,
            "turned": weight.t(),
            "half": weight.to(torch.bfloat16),
            "tiny": torch.zeros(0, 2),
        },
        optimizer={"w/step": torch.tensor(float(step)), "w/exp_avg": weight * 0.1},
        buffers={"amax": torch.full((16,), float(step)), "fp8": weight.to(torch.float8_e4m3fn)},
        scheduler={"last_step": step},
        scaler={"scale": 2.0**10},
        guard={"seen": [step]},
        rng=random_state.saved(),
        cursor={"step": step, "position": 7 * step},
        is_cursor_global=True,
        num_tokens=64 * step,
    )


def written(checkpoints: Path, *steps: int) -> list[Path]:
    return [
        save(checkpoints, step=step, state=state(step), provenance=PROVENANCE) for step in steps
    ]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("saved"), step=20, state=state(20), provenance=PROVENANCE)


def test_a_load_gives_back_what_was_saved(saved: Path) -> None:
    before, after = state(20), load_verified(saved)
    assert digest_state(after) == digest_state(replace(before, rng=after.rng))
    for group, tensors in before.groups.items():
        assert after.groups[group].keys() == tensors.keys()
        for name, tensor in tensors.items():
            loaded = after.groups[group][name]
            assert (loaded.dtype, loaded.shape) == (tensor.dtype, tensor.shape)
            assert torch.equal(loaded.float(), tensor.float())
    rest = ("scheduler", "scaler", "guard", "cursor", "is_cursor_global", "num_tokens")
    assert [getattr(after, name) for name in rest] == [getattr(before, name) for name in rest]


def test_no_manifest_holds_a_credential(tmp_path: Path) -> None:
    provenance = replace(PROVENANCE, hparams={"clip": 1.0, "hub_token": "a secret of the hub"})
    folder = save(tmp_path, step=20, state=state(20), provenance=provenance)
    assert b"a secret of the hub" not in (folder / "MANIFEST.json").read_bytes()
    manifest = read_generation(folder, verify=True).manifest
    assert manifest is not None
    assert manifest.hparams["clip"] == 1.0
    assert manifest.hparams["hub_token"].startswith("redacted-sha256-")


def test_torch_alone_reads_the_tensors_under_its_own_names(saved: Path) -> None:
    import torch.distributed.checkpoint as dcp

    template = {
        "model": {"w": torch.zeros(5, 3)},
        "optimizer": {"state": {"w": {"exp_avg": torch.zeros(5, 3)}}},
    }
    with pytest.warns(UserWarning, match="torch.distributed is disabled"):
        dcp.load(template, checkpoint_id=saved / "tensors")
    assert torch.equal(template["model"]["w"], state(20).params["w"])  # type: ignore[arg-type]
    assert torch.equal(
        template["optimizer"]["state"]["w"]["exp_avg"], state(20).optimizer["w/exp_avg"]
    )


def test_the_desk_reads_the_same_generation_and_finds_nothing_wrong(saved: Path) -> None:
    facts = read_generation(saved, verify=True)
    assert (facts.name, facts.step, facts.complete) == ("step-000020", 20, True)
    assert (facts.problems, facts.nonfinite) == ((), ())
    assert facts.manifest is not None
    mine = digest_state(state(20)).fields
    assert {
        name for name, digest in facts.manifest.fields["rank-0"].items() if digest != mine[name]
    } <= {"rng"}
    assert facts.manifest.num_tokens == 64 * 20


def test_a_scale_in_a_buffer_may_be_large_where_a_weight_may_not_and_neither_may_be_nan(
    tmp_path: Path,
) -> None:
    whole = state(20)
    large = {
        "scale": torch.tensor(1.5e8),
        "bias": torch.tensor([0.0, float("nan")]),
        "none": torch.zeros(2, 2),
    }
    saved = save(tmp_path, step=20, state=replace(whole, buffers=large), provenance=PROVENANCE)
    facts = read_generation(saved, verify=True)
    assert (facts.odd, facts.notes) == ((), ())
    assert [text.partition(":")[0] for text in facts.nonfinite] == ["buffers.bias"]
    flipped = replace(whole, params={**whole.params, "w": torch.full((5, 3), 1.5e8)})
    (odd,) = read_generation(
        save(tmp_path, step=21, state=flipped, provenance=PROVENANCE), verify=True
    ).odd
    assert odd.startswith("model.w: holds 1.5e+08")


def test_a_state_that_differs_anywhere_has_another_digest_in_that_field_alone() -> None:
    random.seed(1)
    whole = digest_state(state(20)).fields
    random.seed(2)
    other = digest_state(state(21)).fields
    same = {name for name in whole if whole[name] == other[name]}
    assert same == {"placement", "scaler"}
    moved = replace(state(21), cursor={"step": 20, "position": 147})
    assert [
        name for name, digest in digest_state(moved).fields.items() if digest != other[name]
    ] == ["cursor"]


def test_a_manifest_that_was_changed_together_with_its_mark_is_still_refused(
    tmp_path: Path,
) -> None:
    (folder,) = written(tmp_path, 20)
    manifest = json.loads((folder / "MANIFEST.json").read_text())
    manifest["fields"]["rank-0"]["cursor"] = "0" * 32
    (folder / "MANIFEST.json").write_text(json.dumps(manifest))
    (folder / "COMPLETE").write_text(of_file(folder / "MANIFEST.json"))
    with pytest.raises(CorruptFileError, match="field cursor of rank 0"):
        load_verified(folder)


@pytest.mark.parametrize(
    ("like", "words"),
    [
        ({"w": torch.zeros(5, 4)}, "parameters: expected those of the model alone, found half"),
        ({"w": torch.zeros(5, 3), "new": torch.zeros(1)}, "parameters: expected new, found none"),
        (
            {**state(1).params, "w": torch.zeros(5, 4)},
            r"parameter w: expected float32\[5, 4\].*found float32\[5, 3\]",
        ),
        (
            {**state(1).params, "half": torch.zeros(5, 3)},
            r"parameter half: expected float32.*found bfloat16\[5, 3\]",
        ),
    ],
)
def test_another_model_is_refused_and_no_dtype_is_changed_in_silence(
    saved: Path, like: dict[str, torch.Tensor], words: str
) -> None:
    with pytest.raises(EvidenceError, match=words):
        load_verified(saved, like)


def test_the_generators_go_on_with_the_numbers_that_would_have_come(tmp_path: Path) -> None:
    def drawn() -> list[float]:
        return [
            random.gauss(0, 1),
            random.random(),
            np.random.normal(),
            np.random.rand(),
            float(torch.rand(())),
        ]

    random.seed(3), np.random.seed(4), torch.manual_seed(5)
    drawn()  # leaves a half of a pair of normal numbers behind in two of them
    (folder,) = written(tmp_path, 20)
    expected = drawn()
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    random_state.restore(load_verified(folder).rng)
    assert drawn() == expected


def test_a_model_goes_on_bit_for_bit_with_what_its_optimizer_held(tmp_path: Path) -> None:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model(torch.ones(4, 6)).square().sum().backward()
        optimizer.step(), optimizer.zero_grad()

    def made(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    model, optimizer = made(1)
    step(model, optimizer)
    held = capture(model, optimizer)
    before = replace(state(1), params=held.params, optimizer=held.optimizer, buffers=held.buffers)
    folder = save(tmp_path, step=1, state=before, provenance=PROVENANCE)
    other, its = made(2)
    step(other, its)
    put(load_verified(folder, dict(other.named_parameters())), other, its)
    for one, optim in ((model, optimizer), (other, its)):
        step(one, optim)
    first, second = (
        digest_state(replace(state(1), **_groups(*pair)))
        for pair in ((model, optimizer), (other, its))
    )
    assert first.tensors == second.tensors
    assert set(first.tensors["buffers"]) == {
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
    }


def _groups(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, dict[str, torch.Tensor]]:
    held = capture(model, optimizer)
    return {"params": held.params, "optimizer": held.optimizer, "buffers": held.buffers}


def test_a_parameter_that_the_model_does_not_name_cannot_be_saved() -> None:
    model, alien = nn.Linear(2, 2), nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([*model.parameters(), alien], lr=0.1)
    alien.grad = torch.ones(3)
    optimizer.step()
    with pytest.raises(UsageError, match=r"shape \[3\] that the model does not name"):
        capture(model, optimizer)


def test_the_newest_generation_that_is_complete_is_chosen(tmp_path: Path) -> None:
    assert newest_complete(tmp_path) is None
    folders = written(tmp_path, 20, 40, 60, 1_000_000)
    assert (
        newest_complete(tmp_path) == folders[3]
    )  # one digit more than the names have: not in the order of letters
    (folders[3] / "COMPLETE").unlink()
    (folders[2] / "COMPLETE").write_text("0" * 32)
    assert newest_complete(tmp_path) == folders[1]
    assert read_manifest(folders[1]).step == 40


def test_known_good_is_older_finite_and_complete(tmp_path: Path) -> None:
    folders = written(tmp_path, 20, 40)
    wrong = state(60)
    wrong.params["w"][2, 1] = torch.inf
    folders.append(save(tmp_path, step=60, state=wrong, provenance=PROVENANCE))
    assert read_manifest(folders[2]).nonfinite == {"rank-0": ("w", "turned")}
    assert [newest_known_good(tmp_path, before=step) for step in (20, 21, 40, 41, 99)] == [
        None,
        folders[0],
        folders[0],
        folders[1],
        folders[1],
    ]


def test_a_step_that_is_saved_again_moves_the_first_aside(tmp_path: Path) -> None:
    written(tmp_path, 20, 20)
    other = replace(state(20), num_tokens=5)
    folder = save(tmp_path, step=20, state=other, provenance=PROVENANCE)
    assert load_verified(folder).num_tokens == 5
    assert sorted(path.name for path in (tmp_path / "superseded").iterdir()) == [
        "step-000020.0",
        "step-000020.1",
    ]
    assert (tmp_path / "superseded" / "step-000020.1" / "COMPLETE").exists()


def test_retention_keeps_what_may_still_be_needed(tmp_path: Path) -> None:
    folders = written(tmp_path, *range(10, 110, 10), 30)
    (folders[0] / "PINNED").touch()
    os.link(folders[1] / "rank-00000.json", tmp_path / "kept-by-a-freeze.json")
    (folders[3] / "COMPLETE").unlink()
    gone = retain(tmp_path, Retention(detection_delay_steps=35), newest_step=100)
    # 65 is the horizon: 60 is the newest one behind it, 40 was never completed, 10 and 20 are
    # pinned
    assert sorted(path.name for path in gone) == ["step-000030", "step-000030.0", "step-000050"]
    left = sorted(path.name for path in tmp_path.glob("step-*"))
    assert left == [
        "step-000010",
        "step-000020",
        "step-000040",
        *(f"step-{step:06d}" for step in range(60, 110, 10)),
    ]
    assert load_verified(folders[0]).num_tokens == 640


def test_retention_deletes_nothing_while_nothing_old_is_known_to_be_good(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        wrong = state(step)
        wrong.params["w"][0, 0] = torch.nan
        save(tmp_path, step=step, state=wrong, provenance=PROVENANCE)
    written(tmp_path, 40)
    assert retain(tmp_path, Retention(detection_delay_steps=5), newest_step=40) == ()
    assert len(list(tmp_path.glob("step-*"))) == 4


def test_a_background_save_that_fails_is_told_at_the_next_one(tmp_path: Path) -> None:
    saver = BackgroundSaver(tmp_path / "checkpoints")
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    saver.save(step=20, state=state(20), provenance=PROVENANCE)
    with pytest.raises(PartialError, match="step-000020: this generation was not saved") as caught:
        saver.save(step=40, state=state(40), provenance=PROVENANCE)
    assert caught.value.exit_code == 6
    (tmp_path / "checkpoints").unlink()
    saver.save(step=60, state=state(60), provenance=PROVENANCE)
    assert saver.wait() == tmp_path / "checkpoints" / "step-000060"


SAVING = """
import sys; from pathlib import Path; sys.path[:0] = sys.argv[2:]
import test_generation_save as here
print("ready", flush=True)
step = 0
while True:
    step += 1
    here.written(Path(sys.argv[1]), step)
    print(step, flush=True)
"""


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_every_generation_whole_or_unfinished(tmp_path: Path) -> None:
    chooser = random.Random(20261130)
    tests = Path(__file__).parent
    last = 0
    for attempt in range(6):
        child = subprocess.Popen(
            [
                sys.executable,
                "-c",
                SAVING,
                str(tmp_path / str(attempt)),
                str(tests),
                str(tests.parent),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(chooser.uniform(0.05, 0.4))
        child.send_signal(signal.SIGKILL)
        told = child.stdout.read().split()
        child.wait(), child.stdout.close()
        last = int(told[-1]) if told else 0
        found = newest_complete(tmp_path / str(attempt))
        step = 0 if found is None else load_verified(found).num_tokens // 64
        assert step in (
            last,
            last + 1,
        )  # what was told is there; the next may have been finished in time
    assert last > 0


FULL = """
import resource, sys; from pathlib import Path; sys.path[:0] = sys.argv[2:]
import test_generation_save as here
from spiketriage.train.guarding.guard import exit_with_code
here.written(Path(sys.argv[1]), 20)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # as a disk that is full: writing fails in the midst of a file
with exit_with_code():
    here.written(Path(sys.argv[1]), 40)
"""


@pytest.mark.slow
def test_a_disk_that_is_full_ends_with_a_sentence_and_costs_only_the_new_generation(
    tmp_path: Path,
) -> None:
    tests = Path(__file__).parent
    command = [sys.executable, "-c", FULL, str(tmp_path / "run"), str(tests), str(tests.parent)]
    told = subprocess.run(command, capture_output=True, text=True)
    assert told.returncode == 6
    assert told.stderr.startswith(f"{tmp_path}/run/step-000040: this generation was not saved: ")
    assert "hint: older generations are as they were" in told.stderr
    assert newest_complete(tmp_path / "run") == tmp_path / "run" / "step-000020"
    assert load_verified(tmp_path / "run" / "step-000020").num_tokens == 1280
