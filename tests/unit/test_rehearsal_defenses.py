"""The rehearsal's trainer with its optional stabilizers: it learns, resumes bit for bit, and each of them acts."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from spiketriage.errors import UsageError
from spiketriage.practice.rehearsal import staging, trainer
from spiketriage.practice.rehearsal.trainer.config import DEFENSES, Config, read_config
from spiketriage.practice.rehearsal.trainer.model import Pass, Trace
from spiketriage.practice.rehearsal.trainer.trainer import Trainer
from spiketriage.readers.telemetry.sources import read_telemetry
from spiketriage.train.checkpoint import newest_complete, read_manifest
from spiketriage.train.harness import Context
from spiketriage.train.recorder import Recorder

CODE = Path(trainer.__file__).parent
NUM_STEPS, SAVE_EVERY = 16, 8


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process group of one rank."""
    rendezvous = tmp_path_factory.mktemp("group") / "store"
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("data") / "data"
    staging.write_data(staging.prepare(140), folder)
    return folder


def prepared(run: Path, data: Path, *defenses: str) -> Path:
    """A run folder with data and `config.json`, not yet trained."""
    run.mkdir()
    (run / "data").symlink_to(data)
    config = Config(seed=140, num_steps=NUM_STEPS, save_every=SAVE_EVERY, warmup_steps=4, defenses=defenses)
    (run / "config.json").write_text(staging.config_text(config), encoding="utf-8")
    return run


def ready(run: Path) -> Trainer:
    """The trainer of a run, from its files."""
    return Trainer(Context(run=run, code=CODE, rank=0, world_size=1, device="cpu"), read_config(run / "config.json"))


def train(run: Path, *, until: int = NUM_STEPS) -> Trainer:
    """What the trainer's `main` does on one rank: resume from the newest generation and go on."""
    one = ready(run)
    with Recorder(run / "telemetry", rank=0, identity=one.environment()) as recorder:
        generation = newest_complete(run / "checkpoints")
        if generation is not None:
            loaded = one.load(generation, "verified")
            told = loaded.digests
            recorder.loaded(step=loaded.step, generation=loaded.generation, fields=told.fields, tensors=told.tensors)
        for step in range(one.last_step + 1, until + 1):
            one.step(step, recorder)
            if step % SAVE_EVERY == 0:
                one.save(run / "checkpoints")
    return one


def test_all_of_them_together_learn_and_a_resumed_run_repeats_every_digest(tmp_path: Path, data: Path) -> None:
    run = prepared(tmp_path / "run", data, *DEFENSES)
    train(run)
    again = tmp_path / "again"
    shutil.copytree(run, again, symlinks=True, ignore=shutil.ignore_patterns("telemetry", "step-000016"))
    train(again)
    first, second = (read_telemetry(one / "telemetry").lineage(0) for one in (run, again))
    losses = [record.metrics["loss/mean"] for record in first]
    assert losses[-1] < losses[0] - 0.5
    behind = {record.step: record for record in first if record.step > SAVE_EVERY}
    assert {record.step for record in second} == set(behind) == set(range(SAVE_EVERY + 1, NUM_STEPS + 1))
    for record in second:
        assert record.digests == behind[record.step].digests, record.step
    one, other = (read_manifest(folder / "checkpoints" / "step-000016") for folder in (run, again))
    assert one.fields == other.fields
    assert json.loads((run / "checkpoints" / "step-000016" / "rank-00000.json").read_text())["scaler"] == {
        "scale": 1024.0,
        "num_finite": NUM_STEPS,
        "num_skipped_in_row": 0,
        "num_skipped": 0,
    }
    assert one.hparams["defenses"] == list(DEFENSES)


def test_each_of_them_alone_changes_the_run_where_it_should(tmp_path: Path, data: Path) -> None:
    chains = {}
    for name in ("none", *DEFENSES):
        run = prepared(tmp_path / name, data, *(() if name == "none" else (name,)))
        train(run, until=1)
        (chains[name],) = read_telemetry(run / "telemetry").lineage(0)

    def differing(name: str) -> set[str]:
        """Stages of the first step that are not those of the run without any."""
        links, plain = chains[name].digests, chains["none"].digests
        return {link.stage for link in {*links, *plain} if links.get(link) != plain.get(link)}

    behind = {"local_gradient", "reduced_gradient", "clip_lr", "optimizer", "params_after"}
    # Powers of two are exact: a loss scale that never overflows leaves no trace in any tensor.
    assert differing("loss-scale") == set()
    assert chains["loss-scale"].metrics["loss_scale"] == 1024.0
    assert differing("guard") == set()
    assert chains["guard"].metrics["guard/action"] == 0.0
    assert differing("z-loss") == behind
    assert {"activations", *behind} <= differing("softcap")
    assert {"params_before", "activations", "loss", *behind} <= differing("qk-norm")
    assert {"params_before", "activations", "loss", *behind} <= differing("scaled-init")


def test_an_overflow_skips_the_update_halves_the_scale_and_leaves_the_state_alone(tmp_path: Path, data: Path) -> None:
    run = prepared(tmp_path / "run", data, "loss-scale")
    one = train(run, until=3)
    params = {name: value.clone() for name, value in one.state().params.items()}
    moments = {name: value.clone() for name, value in one.state().optimizer.items()}
    assert one.scale is not None
    one.scale = replace(one.scale, scale=2.0**140)  # beyond fp32
    with Recorder(run / "telemetry", rank=0, identity=one.environment()) as recorder:
        one.step(4, recorder)
    state = one.state()
    assert all(torch.equal(state.params[name], value) for name, value in params.items())
    assert all(torch.equal(state.optimizer[name], value) for name, value in moments.items())
    assert (one.scale.scale, one.scale.num_skipped, one.scale.num_finite) == (2.0**139, 1, 0)
    record = read_telemetry(run / "telemetry").lineage(0)[-1]
    assert record.step == 4
    assert not math.isfinite(record.metrics["grad/norm"])


def test_unknown_defenses_are_refused_and_that_there_are_none_is_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="zloss"):
        Config(seed=1, num_steps=1, defenses=("zloss",))
    plain = Config(seed=1, num_steps=1)
    assert json.loads(staging.config_text(plain))["defenses"] == []
    (tmp_path / "config.json").write_text(staging.config_text(plain))
    assert read_config(tmp_path / "config.json") == plain


def test_capped_attention_has_a_reference_kernel_that_agrees_and_is_another_code(tmp_path: Path, data: Path) -> None:
    one = ready(prepared(tmp_path / "run", data, "softcap"))
    micro = one.build(one.read(one.ids(1))).micros[0]
    with torch.no_grad():
        one.model.blocks[0].qkv.weight *= 60  # logits large enough for the cap to bend
        deployed, reference = (
            one.model(micro.inputs_MT, micro.mask_M1TT, Pass(precision="fp32", kernel=kernel), Trace())[micro.valid_MT]
            for kernel in ("fused", "math")
        )
    torch.testing.assert_close(deployed, reference, rtol=1e-4, atol=1e-5)
    assert not torch.equal(deployed, reference)
    uncapped = ready(prepared(tmp_path / "plain", data))
    uncapped.model.load_state_dict(one.model.state_dict())
    with torch.no_grad():
        how = Pass(precision="fp32", kernel="math")
        plain = uncapped.model(micro.inputs_MT, micro.mask_M1TT, how, Trace())[micro.valid_MT]
    assert float((plain - reference).abs().max()) > 10 * float((deployed - reference).abs().max())


def test_the_guard_skips_a_nan_gradient_and_a_resumed_run_knows_of_it(tmp_path: Path, data: Path) -> None:
    run = prepared(tmp_path / "run", data, "guard")
    one = train(run, until=3)
    before = one.state()
    held = {name: value.clone() for name, value in {**before.params, **before.optimizer}.items()}
    poison = next(iter(one.params.values())).register_hook(lambda gradient: gradient * math.nan)
    with Recorder(run / "telemetry", rank=0, identity=one.environment()) as recorder:
        one.step(4, recorder)
    poison.remove()
    after = one.state()
    assert all(torch.equal({**after.params, **after.optimizer}[name], value) for name, value in held.items())
    assert (after.cursor["step"], after.num_tokens > before.num_tokens) == (4, True)
    assert read_telemetry(run / "telemetry").lineage(0)[-1].metrics["guard/skipped"] == 1.0
    other = ready(run)
    other.load(one.save(run / "checkpoints"), "verified")
    assert other.guard is not None
    assert (other.guard.accounts.num_skipped, other.guard.accounts.num_taken) == (1, 3)
