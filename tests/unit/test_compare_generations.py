"""Checkpoints of one run against each other, and the two moments of Adam against each other."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spiketriage.nouns.checkpoint import FieldFacts
from spiketriage.readers.checkpoints.generations import read_generations
from spiketriage.readers.scan.moments import bound_of


class Run:
    """A small model that AdamW trains, saved as a plain torch checkpoint whenever asked."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(0)
        self.folder = folder
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.step = 0

    def train(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.optimizer.zero_grad()
            self.model(torch.randn(8, 4)).square().mean().backward()
            self.optimizer.step()
            self.step += 1

    def save(self) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
        }
        torch.save(state, self.folder / f"step_{self.step}.pt")

    def odd(self) -> dict[int | None, tuple[str, ...]]:
        generations = read_generations(self.folder, verify=True)
        return {generation.step: generation.odd for generation in generations}


@pytest.fixture
def run(tmp_path):
    made = Run(tmp_path)
    made.train(5)
    made.save()
    return made


def test_healthy_training_has_nothing_odd(run):
    run.train(5)
    run.save()
    assert run.odd() == {5: (), 10: ()}


def test_a_tensor_that_stands_still_under_a_gradient_is_named(run):
    still = run.model[0].bias.detach().clone()
    run.train(5)
    with torch.no_grad():
        run.model[0].bias.copy_(still)
    run.save()
    (text,) = run.odd()[10]
    assert "0.bias: has not moved since step_5.pt although its gradient is not zero" in text
    assert "3 others moved" in text


def test_a_tensor_that_was_frozen_on_the_way_is_not(run):
    run.model[0].bias.requires_grad_(False)
    run.train(5)
    run.save()
    assert run.odd() == {5: (), 10: ()}


def test_a_largest_weight_that_grows_ten_times_is_named_with_both_values(run):
    run.train(1)
    with torch.no_grad():
        run.model[1].weight[0, 0] = 77.0
    run.save()
    (text,) = run.odd()[6]
    assert "1.weight: holds 77" in text
    assert "the largest weight of step_5.pt" in text


def test_a_shape_that_changes_between_generations_is_named(run):
    state = run.optimizer.state_dict()
    run.model[1] = torch.nn.Linear(4, 3)
    run.step = 6
    torch.save(
        {"model": run.model.state_dict(), "optimizer": {**state, "state": {}}, "step": 6},
        run.folder / "step_6.pt",
    )
    assert "1.weight: has the shape [3, 4], and [2, 4] in step_5.pt" in " ".join(run.odd()[6])


def test_a_first_moment_that_its_second_cannot_have_is_named(run):
    run.train(1)
    state = run.optimizer.state[run.model[0].weight]
    state["exp_avg"][0, 0] = 100.0
    run.save()
    (text,) = run.odd()[6]
    assert "exp_avg_sq" in text
    assert "reaches 100" in text


def group(first, second):
    return FieldFacts(
        kind="config",
        name="optimizer.param_groups",
        rank=None,
        path="x",
        digest="",
        values={"0.betas.0": repr(first), "0.betas.1": repr(second)},
    )


@settings(deadline=None)
@given(
    gradients=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=200),
    betas=st.sampled_from([(0.9, 0.999), (0.9, 0.95), (0.95, 0.99), (0.8, 0.9), (0.0, 0.5)]),
)
def test_no_history_of_gradients_breaks_the_bound(gradients, betas):
    first = second = 0.0
    for gradient in gradients:
        first = betas[0] * first + (1 - betas[0]) * gradient
        second = betas[1] * second + (1 - betas[1]) * gradient**2
    assert first**2 <= bound_of([group(*betas)]) * second * (1 + 1e-9) + 1e-300


def test_the_bound_is_reached_by_gradients_that_decay_as_the_inequality_asks():
    first_beta, second_beta = 0.9, 0.95
    gradients = (first_beta / second_beta) ** np.arange(2000.0)  # newest first
    powers = np.arange(2000.0)
    first = (1 - first_beta) * np.sum(first_beta**powers * gradients)
    second = (1 - second_beta) * np.sum(second_beta**powers * gradients**2)
    assert first**2 / second == pytest.approx(bound_of([group(first_beta, second_beta)]), rel=1e-6)


def test_unknown_betas_have_a_bound_beyond_those_in_use():
    assert bound_of([]) > bound_of([group(0.9, 0.9999)])
