"""A jump that stays is one anomaly; what comes back and jumps again is another."""

from __future__ import annotations

import math

import pytest

from spiketriage.nouns.incident import StepPoint
from spiketriage.runbook.episode import last_step


def points(losses: list[float], norms: list[float] | None = None) -> list[StepPoint]:
    norms = norms or [1.0] * len(losses)
    return [
        StepPoint(
            attempt=0, step=step, loss=loss, grad_norm=norm, update_norm=1.0, lr=0.1, alarm=""
        )
        for step, (loss, norm) in enumerate(zip(losses, norms, strict=True))
    ]


USUAL = [2.0 + 0.01 * (n % 3) for n in range(80)]


@pytest.mark.parametrize(
    ("after", "last"),
    [
        ([9.0, 2.0, 2.0, 9.0], 80),  # one step; the next spike is another
        ([9.0, 8.5, 8.0, 7.0, 6.0], 84),  # a plateau that sinks slowly
        ([9.0, 5.0, 2.1, 9.0], 80),  # less than half is left
        ([math.nan, math.nan, math.nan], 82),
        ([math.inf, math.nan, 2.0], 81),
        ([2.01, 2.0, 2.01], 80),  # it was another signal that spiked
    ],
)
def test_an_episode_lasts_while_the_loss_stays_out(after: list[float], last: int) -> None:
    assert last_step(points([*USUAL, *after]), 80) == last


def test_an_episode_of_the_gradient_norm_alone_is_followed() -> None:
    norms = [1.0 + 0.01 * (n % 2) for n in range(80)] + [50.0, 60.0, 40.0, 1.0]
    assert last_step(points([*USUAL, 2.0, 2.0, 2.0, 2.0], norms), 80) == 82


def test_a_step_that_is_not_there_is_an_episode_of_its_own() -> None:
    assert last_step(points(USUAL), 200) == 200
