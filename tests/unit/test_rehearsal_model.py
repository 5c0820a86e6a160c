"""The rehearsal's model with what widens, splits and narrows it, each held against a computation of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiketriage.practice.rehearsal.trainer.config import Config
from spiketriage.practice.rehearsal.trainer.experts import NUM_CHOSEN
from spiketriage.practice.rehearsal.trainer.fp8_linear import delay_steps
from spiketriage.practice.rehearsal.trainer.model import GPT
from spiketriage.practice.rehearsal.trainer.passes import Masks, Pass, Trace
from spiketriage.practice.rehearsal.trainer.widths import optimizer_groups
from spiketriage.train.stabilizers.mup import coordinate_check


def test_a_gated_mlp_is_the_sum_over_chosen_experts() -> None:
    model = GPT(Config(seed=3, num_steps=1, stabilizers=("router-balance",)))
    block, generator = model.blocks[0].double(), torch.Generator().manual_seed(3)
    x_BTD = torch.randn(2, 5, 48, generator=generator, dtype=torch.float64)
    valid_BT = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    with torch.no_grad():
        block.mixture.balance.bias_E += torch.tensor([0.0, 0.5, 0.0, -0.5])
        features_BTF = F.gelu(x_BTD @ block.up.weight.T)
        seen_BTD = block.mixture(features_BTF, x_BTD, valid_BT, Trace()) @ block.down.weight.T
        chance_BTE = (x_BTD @ block.mixture.router.weight.T).sigmoid()
        for b, t in itertools.product(range(2), range(5)):
            chosen = (
                (chance_BTE[b, t] + block.mixture.balance.bias_E)
                .argsort(descending=True)[:NUM_CHOSEN]
                .tolist()
            )
            expected_D = torch.zeros(48, dtype=torch.float64)
            for expert in chosen if valid_BT[b, t] else []:
                own = slice(48 * expert, 48 * (expert + 1))
                gate = chance_BTE[b, t, expert] / chance_BTE[b, t, chosen].sum()
                expected_D += (
                    gate * block.down.weight[:, own] @ F.gelu(block.up.weight[own] @ x_BTD[b, t])
                )
            torch.testing.assert_close(seen_BTD[b, t], expected_D)


class Called(nn.Module):
    """The model as a function of tokens, in fp32, every one of them a target."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens_BT: Tensor) -> Tensor:
        B, T = tokens_BT.shape
        causal_B1TT = torch.ones(T, T, dtype=torch.bool).tril().expand(B, 1, T, T)
        masks = Masks(attend_B1TT=causal_B1TT, valid_BT=torch.ones(B, T, dtype=torch.bool))
        logits_BTV: Tensor = self.model(
            tokens_BT, masks, Pass(precision="fp32", kernel="fused"), Trace()
        )
        return logits_BTV


@pytest.mark.slow
@pytest.mark.parametrize("init", [(), ("scaled-init",)], ids=["plain", "scaled-init"])
def test_wider_models_move_by_no_more_under_mup(init: tuple[str, ...]) -> None:
    tokens_MT = torch.randint(0, 256, (3, 65), generator=torch.Generator().manual_seed(5))
    inputs_MT, labels_MT = tokens_MT[:, :-1], tokens_MT[:, 1:]

    def slopes(*names: str) -> list[float]:
        def build(width: int, seed: int) -> tuple[nn.Module, Callable[[], None]]:
            config = Config(
                seed=seed,
                num_steps=1,
                d_model=width,
                num_heads=width // 12,
                stabilizers=(*names, *init),
            )
            model = Called(GPT(config))
            groups = optimizer_groups(model.model.named_parameters(), config)
            optimizer = torch.optim.AdamW(
                [{**group, "lr": 0.01 * group["lr_factor"]} for group in groups]
            )

            def step() -> None:
                F.cross_entropy(model(inputs_MT).transpose(1, 2), labels_MT).backward()
                optimizer.step()
                optimizer.zero_grad()

            return model, step

        layers = ("model.blocks.1.up", "model.head")
        found = coordinate_check(build, widths=(24, 48, 96), layers=layers, inputs=inputs_MT)
        return [found.slope[layer] for layer in layers]

    assert max(slopes("mup")) < 0.1
    assert min(slopes()) > 0.2


def test_at_the_base_width_mup_is_the_plain_model() -> None:
    plain, scaled = (
        GPT(Config(seed=3, num_steps=1, d_model=24, num_heads=2, stabilizers=names))
        for names in ((), ("mup",))
    )
    assert scaled.head.factor == plain.head.factor == 1.0
    for name, value in plain.state_dict().items():
        assert torch.equal(value, scaled.state_dict()[name]), name


@pytest.mark.parametrize(
    ("init", "hidden", "other"),
    [((), 0.5**0.5, 1.0), (("scaled-init",), 1.0, 2**0.5)],
    ids=["plain", "scaled-init"],
)
def test_first_weights_at_twice_the_base_width_have_the_base_model_s_std_by_role(
    init: tuple[str, ...], hidden: float, other: float
) -> None:
    """std: hidden base / √2, all else base.

    Scaled init draws by the fan-in, so that its base is √2 of what it drew.
    """
    plain, scaled = (
        GPT(Config(seed=3, num_steps=1, stabilizers=(*init, *names))) for names in ((), ("mup",))
    )
    for name, weight in plain.named_parameters():
        factor = 1.0 if weight.dim() < 2 else hidden if name.startswith("blocks.") else other
        torch.testing.assert_close(scaled.get_parameter(name), weight * factor, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("history", "number", "expected"),
    [
        ([0, 0, 0], 0, 0),  # nothing was seen yet
        ([5, 1, 1], 0, 1),  # by the last microbatch of the step before
        ([5, 1, 1], 1, 0),  # by the first one of this step
        ([1, 5, 1], 1, 1),
        ([1, 1, 5, 1, 1], 1, 1),
        ([1, 1, 1, 5, 1], 1, 2),
        ([1, 1, 5, 1, 1], 0, 2),
    ],
)
def test_the_age_of_an_amax_is_counted_in_steps_of_two_microbatches(
    history: list[float], number: int, expected: int
) -> None:
    assert delay_steps(torch.tensor(history, dtype=torch.float32), number, 2) == expected
