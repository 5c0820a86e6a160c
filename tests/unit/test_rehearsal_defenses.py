"""The rehearsal's trainer with its optional stabilizers.

It learns, resumes bit for bit, and each of them acts.
"""

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
from rehearsal_ranks import ready, train_on_two
from torch import Tensor

from spiketriage.defenses import command
from spiketriage.errors import EvidenceError, UsageError
from spiketriage.nouns.telemetry import StepRecord
from spiketriage.practice.rehearsal import staging
from spiketriage.practice.rehearsal.trainer.config import ALWAYS, DEFENSES, Config, read_config
from spiketriage.practice.rehearsal.trainer.data import Batch
from spiketriage.practice.rehearsal.trainer.experts import NUM_CHOSEN, NUM_EXPERTS
from spiketriage.practice.rehearsal.trainer.passes import Masks, Pass, Trace
from spiketriage.practice.rehearsal.trainer.trainer import Trainer
from spiketriage.readers.telemetry.run.sources import read_telemetry
from spiketriage.train.generations.generation import newest_complete, read_manifest
from spiketriage.train.generations.rank_state import digest_state
from spiketriage.train.harness import Overrides
from spiketriage.train.recording.recorder import Recorder

pytestmark = pytest.mark.slow

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
    config = Config(
        seed=140, num_steps=NUM_STEPS, save_every=SAVE_EVERY, warmup_steps=4, defenses=defenses
    )
    (run / "config.json").write_text(staging.config_text(config), encoding="utf-8")
    return run


def train(run: Path, *, until: int = NUM_STEPS) -> Trainer:
    """What the trainer's `main` does on one rank: resume from the newest generation and go on."""
    one = ready(run)
    with Recorder(run / "telemetry", rank=0, identity=one.environment()) as recorder:
        generation = newest_complete(run / "checkpoints")
        if generation is not None:
            loaded = one.load(generation, "verified")
            told = loaded.digests
            recorder.loaded(
                step=loaded.step,
                generation=loaded.generation,
                fields=told.fields,
                tensors=told.tensors,
            )
        for step in range(one.last_step + 1, until + 1):
            one.step(step, recorder)
            if step % SAVE_EVERY == 0:
                one.save(run / "checkpoints")
    return one


def test_all_of_them_together_learn_and_a_resumed_run_repeats_every_digest(
    tmp_path: Path, data: Path
) -> None:
    run = prepared(tmp_path / "run", data, *DEFENSES)
    train(run)
    again = tmp_path / "again"
    shutil.copytree(
        run, again, symlinks=True, ignore=shutil.ignore_patterns("telemetry", "step-000016")
    )
    train(again)
    first, second = (read_telemetry(one / "telemetry").lineage(0) for one in (run, again))
    losses = [record.metrics["loss/mean"] for record in first]
    assert losses[-1] < losses[0] - 0.5
    behind = {record.step: record for record in first if record.step > SAVE_EVERY}
    assert (
        {record.step for record in second}
        == set(behind)
        == set(range(SAVE_EVERY + 1, NUM_STEPS + 1))
    )
    for record in second:
        assert record.digests == behind[record.step].digests, record.step
    one, other = (read_manifest(folder / "checkpoints" / "step-000016") for folder in (run, again))
    assert one.fields == other.fields
    assert json.loads((run / "checkpoints" / "step-000016" / "rank-00000.json").read_text())[
        "scaler"
    ] == {
        "scale": 1024.0,
        "num_finite": NUM_STEPS,
        "num_skipped_in_row": 0,
        "num_skipped": 0,
    }
    assert one.hparams["defenses"] == list(DEFENSES)
    # What the desk says of the run: everything is on; nothing that it keeps speaks of the sum over
    # microbatches.
    rows = {
        row["name"]: row["status"]
        for row in command.run(str(run), selectable=DEFENSES, built_in=ALWAYS).data["defenses"]
    }
    assert {name for name, status in rows.items() if status != "on"} == {"fp32-accumulation"}
    _needs_its_scales(again, data)


def _needs_its_scales(run: Path, data: Path) -> None:
    """A generation without FP8 state does not load into a run that has it."""
    plain = prepared(run.with_name("plain"), data)
    generation = train(plain, until=1).save(plain / "checkpoints")
    with pytest.raises(EvidenceError, match=r"fp8/blocks\.0\.qkv/inputs/amax_history"):
        ready(prepared(run.with_name("eight"), data, "fp8-scaling")).load(generation, "deployed")


def series(record: StepRecord, name: str, *shape: int) -> Tensor:
    """A recorded vector in its shape."""
    return torch.tensor(record.series[name], dtype=torch.float64).reshape(shape)


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
    assert {"params_before", "activations", "loss", *behind} <= differing("mup")
    assert differing("fp8-scaling") == {
        "activations",
        "loss",
        *behind,
    }  # the weights themselves stay as they were
    # A second router is drawn before the second block: its weights are others from there on.
    assert {"params_before", "activations", "loss", *behind} <= differing("router-balance")


def test_every_group_of_parameters_has_its_own_rate_under_mup(tmp_path: Path, data: Path) -> None:
    run = prepared(tmp_path / "run", data, "mup", "router-balance")
    one = train(run, until=2)
    record = read_telemetry(run / "telemetry").lineage(0)[-1]
    lr = one.lr(2)
    # d_model 48 is twice the base width: hidden weights at half the rate and twice the decay, all
    # else as it is
    assert record.metrics["lr"] == lr
    assert sorted(record.series["optimizer/lr"]) == [lr / 2, lr, lr]
    assert sorted(record.series["optimizer/weight_decay"]) == [0.1, 0.1, 0.2]
    names = {id(parameter): name for name, parameter in one.params.items()}
    (slow,) = (group for group in one.optimizer.param_groups if group["lr"] == lr / 2)
    hidden = {names[id(parameter)] for parameter in slow["params"]}
    assert hidden == {
        f"blocks.{n}.{part}.weight" for n in range(3) for part in ("qkv", "out", "up", "down")
    }


def test_the_bias_moves_once_a_step_against_the_load_of_all_microbatches(
    tmp_path: Path, data: Path
) -> None:
    run = prepared(tmp_path / "run", data, "router-balance")
    one = train(run, until=4)
    records = read_telemetry(run / "telemetry").lineage(0)
    num_layers = len(one.model.blocks)
    bias_LE = torch.zeros(num_layers, NUM_EXPERTS, dtype=torch.float64)
    for record in records:
        torch.testing.assert_close(
            series(record, "moe/bias", num_layers, NUM_EXPERTS), bias_LE, rtol=0, atol=1e-8
        )
        load_LE = series(record, "moe/load", num_layers, NUM_EXPERTS)
        assert load_LE.sum(1).tolist() == [NUM_CHOSEN * record.metrics["tokens/valid"]] * num_layers
        bias_LE += 1e-3 * torch.sign(load_LE.mean(1, keepdim=True) - load_LE)
        assert (
            len(record.series["moe/router_entropy"])
            == len(record.series["moe/drop_share"])
            == num_layers
        )
    buffers = one.state().buffers
    for layer in range(num_layers):
        bias_E = buffers[f"blocks.{layer}.mixture.balance.bias_E"]
        torch.testing.assert_close(bias_E.double(), bias_LE[layer], rtol=0, atol=1e-8)
        assert int(buffers[f"blocks.{layer}.mixture.balance.num_updates"]) == len(records)


def test_the_objective_has_the_router_s_z_loss_of_all_layers(tmp_path: Path, data: Path) -> None:
    one = ready(prepared(tmp_path / "run", data, "router-balance"))
    batch = one.build(one.read(one.ids(1)))
    with (
        Recorder(tmp_path / "telemetry", rank=0, identity=one.environment()) as recorder,
        recorder.step(1) as record,
    ):
        found = one._gradients(batch, Pass(precision="fp32", kernel="math"), 1, record)
    objective = torch.zeros(())
    for micro in batch.micros:
        trace, masks = Trace(), Masks(attend_B1TT=micro.mask_M1TT, valid_BT=micro.valid_MT)
        logits_MTV = one.model(micro.inputs_MT, masks, Pass(precision="fp32", kernel="math"), trace)
        chance_MTV = logits_MTV.log_softmax(-1).gather(-1, micro.labels_MT[..., None])[..., 0]
        objective = objective - chance_MTV[micro.valid_MT].sum()
        for routed in trace.routed:
            logits_NE = routed.logits_NE[micro.valid_MT.flatten()]
            objective = objective + 1e-3 * logits_NE.exp().sum(-1).log().square().sum()
    num_valid = sum(int(micro.valid_MT.sum()) for micro in batch.micros)
    expected = torch.autograd.grad(objective / num_valid, list(one.params.values()))
    assert found.num_valid == num_valid
    for name, gradient in zip(one.params, expected, strict=True):
        torch.testing.assert_close(found.by_name[name], gradient, rtol=1e-3, atol=1e-7)


def test_a_pass_learns_amax_and_a_probe_leaves_the_whole_state_alone(
    tmp_path: Path, data: Path
) -> None:
    run = prepared(tmp_path / "run", data, *DEFENSES)
    one = train(run, until=2)
    first, second = read_telemetry(run / "telemetry").lineage(0)
    # Of every microbatch 12 layers with input and weight, and the gradients on the way back
    assert {len(values) for name, values in second.series.items() if name.startswith("fp8/")} == {
        2 * 12 * 3
    }
    assert set(first.series["fp8/scale"][:36]) == {1.0}  # nothing is known yet
    weight = float(one.model.blocks[0].qkv.weight.detach().abs().max())
    history_A = one.state().buffers["fp8/blocks.0.qkv/weight/amax_history"]
    assert (
        history_A[:4].tolist()
        == [second.series["fp8/amax"][1]] * 2 + [first.series["fp8/amax"][1]] * 2
    )
    assert not history_A[4:].any()
    assert weight != float(history_A[0])  # the update came after
    batch = one.build(one.read(one.ids(3)))
    before = digest_state(one.state())
    for precision, kernel in (("deployed", "deployed"), ("deployed", "math"), ("fp32", "math")):
        probed = probe(
            one,
            batch,
            Overrides(precision=precision, kernel=kernel),
            tmp_path / f"{precision}-{kernel}",
        )
        assert digest_state(one.state()) == before
        assert ("fp8/amax" in probed.series) == (precision == "deployed")


def probe(one: Trainer, batch: Batch, overrides: Overrides, folder: Path) -> StepRecord:
    """What a probe records."""
    with (
        Recorder(folder, rank=0, identity=one.environment()) as recorder,
        recorder.step(3) as record,
    ):
        one.forward_backward(batch, overrides, record)
    (record_,) = read_telemetry(folder).lineage(0)
    return record_


def test_two_ranks_hold_the_same_scales_and_biases_though_they_read_other_batches(
    tmp_path: Path, data: Path
) -> None:
    run = prepared(tmp_path / "run", data, "fp8-scaling", "router-balance")
    train_on_two(run, 2)
    telemetry = read_telemetry(run / "telemetry")
    amaxes, loads = (
        [telemetry.lineage(rank)[-1].series[name] for rank in range(2)]
        for name in ("fp8/amax", "moe/load")
    )
    assert amaxes[0] != amaxes[1]
    assert loads[0] != loads[1]
    fields = read_manifest(run / "checkpoints" / "step-000002").fields
    assert fields["rank-0"]["buffers"] == fields["rank-1"]["buffers"]
    state = ready(run)
    state.load(run / "checkpoints" / "step-000002", "deployed")
    total_E = torch.zeros(NUM_EXPERTS)
    for rank in range(2):
        bias_E = torch.tensor(telemetry.lineage(rank)[-1].series["moe/bias"])[:NUM_EXPERTS]
        total_E += torch.tensor(loads[rank])[:NUM_EXPERTS]
    moved_E = state.state().buffers["blocks.0.mixture.balance.bias_E"] - bias_E
    torch.testing.assert_close(
        moved_E, 1e-3 * torch.sign(total_E.mean() - total_E), rtol=0, atol=1e-8
    )


def test_an_overflow_skips_the_update_halves_the_scale_and_leaves_the_state_alone(
    tmp_path: Path, data: Path
) -> None:
    run = prepared(tmp_path / "run", data, "loss-scale", "router-balance", "fp8-scaling")
    one = train(run, until=3)
    before = digest_state(one.state())
    assert one.scale is not None
    one.scale = replace(one.scale, scale=2.0**140)  # beyond fp32
    with Recorder(run / "telemetry", rank=0, identity=one.environment()) as recorder:
        one.step(4, recorder)
    after = digest_state(one.state())
    assert (
        after.tensors == before.tensors
    )  # parameters, moments; router biases, FP8 scales and histories
    assert {"params", "optimizer", "buffers"} <= {*after.tensors}
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


def test_capped_attention_has_a_reference_kernel_that_agrees_and_is_another_code(
    tmp_path: Path, data: Path
) -> None:
    one = ready(prepared(tmp_path / "run", data, "softcap"))
    micro = one.build(one.read(one.ids(1))).micros[0]
    with torch.no_grad():
        one.model.blocks[0].qkv.weight *= 60  # logits large enough for the cap to bend
        deployed, reference = (
            one.model(
                micro.inputs_MT,
                Masks(attend_B1TT=micro.mask_M1TT, valid_BT=micro.valid_MT),
                Pass(precision="fp32", kernel=kernel),
                Trace(),
            )[micro.valid_MT]
            for kernel in ("fused", "math")
        )
    torch.testing.assert_close(deployed, reference, rtol=1e-4, atol=1e-5)
    assert not torch.equal(deployed, reference)
    uncapped = ready(prepared(tmp_path / "plain", data))
    uncapped.model.load_state_dict(one.model.state_dict())
    with torch.no_grad():
        how = Pass(precision="fp32", kernel="math")
        plain = uncapped.model(
            micro.inputs_MT,
            Masks(attend_B1TT=micro.mask_M1TT, valid_BT=micro.valid_MT),
            how,
            Trace(),
        )[micro.valid_MT]
    assert float((plain - reference).abs().max()) > 10 * float((deployed - reference).abs().max())


def test_the_guard_skips_a_nan_gradient_and_a_resumed_run_knows_of_it(
    tmp_path: Path, data: Path
) -> None:
    run = prepared(tmp_path / "run", data, "guard")
    one = train(run, until=3)
    before = one.state()
    held = {name: value.clone() for name, value in {**before.params, **before.optimizer}.items()}
    poison = next(iter(one.params.values())).register_hook(lambda gradient: gradient * math.nan)
    with Recorder(run / "telemetry", rank=0, identity=one.environment()) as recorder:
        one.step(4, recorder)
    poison.remove()
    after = one.state()
    assert all(
        torch.equal({**after.params, **after.optimizer}[name], value)
        for name, value in held.items()
    )
    assert (after.cursor["step"], after.num_tokens > before.num_tokens) == (4, True)
    assert read_telemetry(run / "telemetry").lineage(0)[-1].metrics["guard/skipped"] == 1.0
    other = ready(run)
    other.load(one.save(run / "checkpoints"), "verified")
    assert other.guard is not None
    assert (other.guard.accounts.num_skipped, other.guard.accounts.num_taken) == (1, 3)
