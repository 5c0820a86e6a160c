"""Initial weights measured in small models, and μP's coordinate check, which SP must fail."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiketriage.errors import UsageError
from spiketriage.train.stabilizers import init, mup

WIDTHS = (64, 128, 256, 512)
BASE = 64
INPUTS = torch.randn(16, 12, generator=torch.Generator().manual_seed(0))


class Stack(nn.Module):
    """A residual stream of L linear blocks, two to a layer, as a transformer writes into it."""

    def __init__(self, num_layers: int, width: int) -> None:
        super().__init__()
        self.mix = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(num_layers))
        self.out = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(num_layers))

    def forward(self, x: Tensor) -> Tensor:
        """The stream at the end."""
        for mix, out in zip(self.mix, self.out, strict=True):
            x = x + mix(x)
            x = x + out(x)
        return x


def growth(num_layers: int, residual: tuple[str, ...]) -> float:
    """How the mean square of the stream grows from start to end, at width 256."""
    model = Stack(num_layers, 256)
    names = [
        (name.replace("mix", "mix.proj").replace("out", "out.proj"), p)
        for name, p in model.named_parameters()
    ]
    init.initialise_(names, num_layers=num_layers, residual=residual, seed=3)
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return float(model(x).square().mean() / x.square().mean())


def test_the_residual_gain_bounds_the_stream_at_every_depth() -> None:
    # each of 2L writes adds 1/(2L) of the stream's variance: (1 + 1/2L)^2L < e; without the gain it
    # doubles 2L times
    for num_layers in (2, 8, 32):
        scaled = growth(num_layers, (".weight",))
        assert scaled == pytest.approx((1 + 1 / (2 * num_layers)) ** (2 * num_layers), rel=0.15)
    assert growth(8, ("out.proj.7.weight",)) > 2**12


@pytest.mark.parametrize("fan_in", [16, 300, 1024])
def test_a_linear_layer_keeps_the_variance_of_its_input(fan_in: int) -> None:
    weight = torch.empty(400, fan_in)
    init.draw_("w", weight, init.variance_preserving_std(fan_in), seed=1)
    x = torch.randn(500, fan_in, generator=torch.Generator().manual_seed(2))
    # truncation at 3 std takes 2.7 % of the variance
    assert float((x @ weight.T).square().mean()) == pytest.approx(0.973, rel=0.1)
    relu = torch.empty(400, fan_in)
    init.draw_("w", relu, init.variance_preserving_std(fan_in, gain=math.sqrt(2)), seed=1)
    assert float(F.relu(x @ relu.T).square().mean()) == pytest.approx(0.973, rel=0.1)


def test_values_follow_from_seed_and_name_and_not_from_the_order_or_the_global_generator() -> None:
    def weights(order: list[str], seed: int) -> dict[str, Tensor]:
        torch.manual_seed(len(order))
        found = {name: torch.zeros(4, 6) for name in order}
        init.initialise_(
            [*found.items(), ("gain", torch.ones(4))], num_layers=2, residual=("out",), seed=seed
        )
        return found

    one, other = weights(["a", "b.out"], 7), weights(["new", "b.out", "a"], 7)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not torch.equal(one["a"], one["b.out"])
    assert not torch.equal(weights(["a", "b.out"], 8)["a"], one["a"])
    assert float(one["a"].abs().max()) <= 3 / math.sqrt(6)
    half = torch.zeros(4, 6, dtype=torch.bfloat16)
    init.draw_("a", half, 1 / math.sqrt(6), seed=7)
    assert torch.equal(half, one["a"].bfloat16())


def test_a_residual_suffix_that_fits_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'down\.weight'"):
        init.initialise_(
            [("up.weight", torch.zeros(2, 2))], num_layers=1, residual=("down.weight",), seed=0
        )
    stds = init.initialise_(
        [
            ("up.weight", torch.zeros(8, 4)),
            ("down.weight", torch.zeros(4, 8)),
            ("bias", torch.zeros(3)),
        ],
        num_layers=2,
        residual=("down.weight",),
        seed=0,
    )
    assert stds == pytest.approx({"up.weight": 0.5, "down.weight": 1 / math.sqrt(8) / 2})


def test_deepnorm_constants_and_what_they_bound() -> None:
    decoder = init.deepnorm_decoder(100)
    # the constants of a 100-layer decoder by hand: 200^¼ and 800^-¼
    assert (decoder.alpha, decoder.beta) == pytest.approx((3.7606, 0.18803), rel=1e-4)
    first, second = init.deepnorm_encoder_decoder(6, 6)
    assert (first.alpha, first.beta) == pytest.approx(
        (0.81 * 6**0.3125, 0.87 * 6**-0.3125), rel=1e-12
    )
    assert (second.alpha, second.beta) == pytest.approx((18**0.25, 72**-0.25), rel=1e-12)
    # the paper's condition for a bounded update of L layers, 2L sublayers: 2L · (β/α)² · 2 = const
    for num_layers in (1, 10, 1000):
        one = init.deepnorm_decoder(num_layers)
        assert 2 * num_layers * (one.beta / one.alpha) ** 2 == pytest.approx(0.5)


class MLP(nn.Module):
    """Two hidden layers that grow with the width between an input and an output that do not."""

    def __init__(self, width: int, multiplier: float) -> None:
        super().__init__()
        self.read = nn.Linear(12, width, bias=False)
        self.first = nn.Linear(width, width, bias=False)
        self.second = nn.Linear(width, width, bias=False)
        self.head = nn.Linear(width, 10, bias=False)
        self.logits = nn.Identity()
        self.multiplier = multiplier

    def forward(self, x: Tensor) -> Tensor:
        """Logits of ten classes."""
        x = F.relu(self.second(F.relu(self.first(F.relu(self.read(x))))))
        result: Tensor = self.logits(self.head(x) * self.multiplier)
        return result


def builder(*, mu: bool, lr: float = 0.01) -> Callable[[int, int], mup.Built]:
    """Models of any width under μP or SP, equal at the base width."""

    def build(width: int, seed: int) -> mup.Built:
        model = MLP(
            width, mup.scaling("output", width=width, base_width=BASE).output if mu else 1.0
        )
        for name, weight in model.named_parameters():
            role = mup.role_of(name, weight, inputs=("read",), outputs=("head",))
            std = init.variance_preserving_std(12 if role == "input" else BASE, gain=math.sqrt(2))
            if mu:
                std *= mup.scaling(role, width=width, base_width=BASE).init_std
            elif role != "input":
                std = init.variance_preserving_std(width, gain=math.sqrt(2))
            init.draw_(f"{width}/{name}", weight, std, seed=seed)
        groups = mup.param_groups(
            model.named_parameters(),
            lr=lr,
            weight_decay=0.1,
            width=width if mu else BASE,
            base_width=BASE,
            inputs=("read",),
            outputs=("head",),
        )
        optimizer = torch.optim.AdamW(groups, eps=1e-12)
        labels = torch.arange(16) % 10

        def step() -> None:
            optimizer.zero_grad()
            F.cross_entropy(model(INPUTS), labels).backward()
            optimizer.step()

        return model, step

    return build


def test_the_coordinate_check_passes_under_mup_and_fails_under_sp() -> None:
    layers = ("read", "first", "second", "logits")
    mu, sp = (
        mup.coordinate_check(
            builder(mu=flag), widths=WIDTHS, layers=layers, inputs=INPUTS, num_steps=4, num_seeds=2
        )
        for flag in (True, False)
    )
    assert {layer: tuple(by_width) for layer, by_width in mu.change.items()} == dict.fromkeys(
        layers, WIDTHS
    )
    assert max(abs(slope) for slope in mu.slope.values()) < 0.2, mu
    for layer in ("first", "second", "logits"):
        assert sp.slope[layer] > 0.4, sp
    # both are the same model at the base width
    assert mu.change["second"][BASE] == pytest.approx(sp.change["second"][BASE], rel=1e-5)


def test_scaling_rules_by_hand() -> None:
    assert mup.scaling("hidden", width=256, base_width=64) == mup.Scaling(
        init_std=0.5, lr=0.25, output=1.0, weight_decay=4.0
    )
    assert mup.scaling("output", width=256, base_width=64).output == 0.25
    plain = mup.Scaling(init_std=1.0, lr=1.0, output=1.0, weight_decay=1.0)
    assert mup.scaling("input", width=256, base_width=64) == plain
    assert all(
        mup.scaling(role, width=64, base_width=64) == plain
        for role in ("input", "hidden", "output")
    )
    assert mup.attention_scale(64, base_head_width=64) == 1 / 8
    assert mup.attention_scale(256, base_head_width=64) == 8 / 256
    with pytest.raises(UsageError, match="hidden"):
        mup.scaling("head", width=64, base_width=64)


def test_groups_hold_each_parameter_once_by_role() -> None:
    model = nn.ModuleDict(
        {"embed": nn.Embedding(5, 8), "mid": nn.Linear(8, 8), "head": nn.Linear(8, 5)}
    )
    groups = mup.param_groups(
        model.named_parameters(),
        lr=1.0,
        weight_decay=0.1,
        width=8,
        base_width=4,
        inputs=("embed",),
        outputs=("head",),
    )
    by_shape = {
        tuple(p.shape): (group["lr"], group["weight_decay"])
        for group in groups
        for p in group["params"]
    }
    assert sum(len(group["params"]) for group in groups) == 5
    assert by_shape[5, 8] == (1.0, 0.1)
    assert by_shape[8, 8] == (0.5, 0.2)
    assert by_shape[8,] == (1.0, 0.1)


def test_a_coordinate_check_of_one_width_or_of_a_layer_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="at least two widths"):
        mup.coordinate_check(builder(mu=True), widths=(64,), layers=("read",), inputs=INPUTS)
    with pytest.raises(UsageError, match="no layers"):
        mup.coordinate_check(builder(mu=True), widths=(64, 128), layers=("other",), inputs=INPUTS)
