"""What a key of a state dict is, and whose an optimizer's tensor is."""

from __future__ import annotations

import pytest

from spiketriage.readers.checkpoints.building.optimizer_names import field_kind, owner

PARAMETERS = {"model.w", "layers.0.weight", "decoder.x.weight", "state.model.a.b"}


@pytest.mark.parametrize(
    ("key", "parameter", "state"),
    [
        ("optim.state.w.exp_avg", "model.w", "exp_avg"),
        ("optimizer.state.layers.0.weight.step", "layers.0.weight", "step"),
        ("optimizer_0.state.w.exp_avg_sq", "model.w", "exp_avg_sq"),
        ("optimizer.state.exp_avg.decoder.x.weight", "decoder.x.weight", "exp_avg"),
        ("chained_1.optimizer.state.fp32_param.decoder.x.weight", "decoder.x.weight", "fp32_param"),
        ("state.optimizers.DecoupledAdamW.state.a.b.exp_avg", "state.model.a.b", "exp_avg"),
        ("optimizer.state.frozen.bias.exp_avg", "frozen.bias", "exp_avg"),
        ("optimizer.state.0.exp_avg", "", "exp_avg"),
        ("optimizer.state.w.invented", "model.w", "invented"),
        ("optimizer.distributed.dp_group_idx_0.gbuf_idx_0", "", ""),
        ("optimizer.param_groups.0.lr", "", ""),
    ],
)
def test_an_optimizer_tensor_is_mapped_to_its_parameter(
    key: str, parameter: str, state: str
) -> None:
    found = owner(key, PARAMETERS)
    assert (found.role, found.parameter, found.state) == ("optimizer", parameter, state)


@pytest.mark.parametrize(
    "key",
    [
        "model.w",
        "layers.3.mlp.weight",
        "model.optimal.weight",
        "decoder.scheduled_sampling.w",
        "embed.weight",
    ],
)
def test_a_weight_is_a_parameter(key: str) -> None:
    assert owner(key, ()).role == "parameter"


@pytest.mark.parametrize(
    "key",
    [
        "train_state.ntokens_seen",
        "lr_scheduler.last_epoch",
        "rng_rank0.torch",
        "dataloader.dp_rank_3",
        "a.rng_state",
    ],
)
def test_other_state_is_neither(key: str) -> None:
    assert owner(key, ()).role == "other"


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("lr_scheduler.last_epoch", "scheduler"),
        ("opt_param_scheduler", "scheduler"),
        ("dataloader.dp_rank_0", "cursor"),
        ("dataset_state", "cursor"),
        ("rng_state/shard_0.0_1.2", "rng"),
        ("rng_rank0.python", "rng"),
        ("random_states_1", "rng"),
        ("decoder.linear._extra_state/shard_0_1", "fp8"),
        ("grad_scaler", "scaler"),
        ("scaler", "scaler"),
        ("train_state.step", "progress"),
        ("step", "progress"),
        ("common_state.iteration", "progress"),
        ("optimizer.param_groups.0.lr", "config"),
        ("args", "config"),
        ("callbacks", "other"),
        ("stepwise_thing", "other"),
    ],
)
def test_the_kind_of_a_field(key: str, kind: str) -> None:
    assert field_kind(key) == kind
