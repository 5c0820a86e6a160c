"""Read a replay: the first link in which production and its repetition differ, or how they agree.

It never calls a difference transient before three replays agree with each other bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from spiketriage.diagnosis.answer import Answer
from spiketriage.diagnosis.compare import (
    Chain,
    Comparison,
    by_step,
    compare,
    compare_loads,
    relative_noise,
)
from spiketriage.diagnosis.experiments.heals import read_suspect_step
from spiketriage.diagnosis.role import TESTS_CAUSES, TESTS_MENTIONED, Emission, stamp
from spiketriage.diagnosis.setting import Setting
from spiketriage.nouns.incident import Finding, Outcome, Where
from spiketriage.nouns.listing import listed

REPLAY, SPIKE_AGAIN, DETERMINISM = "replay", "replay-spike", "replay-determinism"
EMITS = {
    REPLAY: Emission(role=TESTS_CAUSES),
    SPIKE_AGAIN: Emission(role=TESTS_MENTIONED),
    DETERMINISM: Emission(role=TESTS_MENTIONED),
}
NUM_REPLAYS = 3  # bit-compared replays before anyone says "transient"
# No arithmetic lies before these stages, so that noise cannot explain a difference in them.
EXACT = ("restored", "ids", "content", "batch")
# Production counts as another chain than its replays beyond ten times what two replays differ by.
NOISE_BAND = 10.0
NUM_NAMED = 3


def first_difference(setting: Setting, answer: Answer) -> Where | None:
    """Where one replay leaves production first; None when they are identical."""
    where = compare_loads(setting.loads, answer.loads)
    if where is not None:
        return where
    return _against_production(setting, answer).where


def replay_findings(setting: Setting, answers: Sequence[Answer]) -> tuple[Finding, ...]:
    """Whether the window repeats, whether the replays agree, and whether the spike came back."""
    findings = [read_replay(setting, answers)]
    if len(answers) >= NUM_REPLAYS:
        findings.append(_determinism(answers))
    if setting.spiked:
        findings.append(read_suspect_step(SPIKE_AGAIN, setting, answers[0], "replayed"))
    return stamp(findings, EMITS)


def read_replay(setting: Setting, answers: Sequence[Answer]) -> Finding:
    """The finding of all replays of the window together."""
    window = _Window(setting=setting, answers=tuple(answers))
    where = first_difference(setting, answers[0])
    comparison = _against_production(setting, answers[0])
    if comparison.num_links == 0:
        return window.finding(
            "not testable", f"replay and production share no link over {window.span}"
        )
    if where is None:
        return window.finding(
            "agrees",
            f"bitwise identical over {window.span}: {comparison.num_links} links in "
            f"{comparison.num_steps} steps",
            seen="every link identical",
            magnitude=0.0,
        )
    chains = [by_step(answer.steps) for answer in answers]
    if len(chains) > 1 and where.stage not in EXACT and not _identical(chains):
        return _read_noisy(window, chains, where)
    summary = (
        f"production leaves its replay first at step {where.step}, {where.stage} "
        f"{where.key}{_who(where)}"
    )
    if len(chains) >= NUM_REPLAYS:
        summary += f"; {len(chains)} replays agree with each other bit for bit"
    seen = (
        f"{comparison.prefix_steps} steps identical before it; differing there: "
        f"{_named(comparison, where)}"
    )
    return window.finding("differs", summary, where=where, seen=seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """The replayed window and its answers, as every finding about them names them."""

    setting: Setting
    answers: tuple[Answer, ...]

    @property
    def span(self) -> str:
        """`steps 181 to 203 from step-000180`."""
        first, last = self.setting.known_good_step + 1, self.answers[0].trial.last_step
        return f"steps {first} to {last} from {self.setting.known_good}"

    def finding(
        self,
        outcome: Outcome,
        summary: str,
        *,
        where: Where | None = None,
        seen: str = "",
        magnitude: float | None = None,
    ) -> Finding:
        """The finding `replay`."""
        return Finding(
            name=REPLAY,
            outcome=outcome,
            source="experiment",
            summary=summary,
            where=where or Where(),
            expected="production's chain, link by link",
            seen=seen,
            magnitude=magnitude,
            trials=tuple(answer.trial.key for answer in self.answers),
        )


def _determinism(answers: Sequence[Answer]) -> Finding:
    chains = [by_step(answer.steps) for answer in answers]
    outcome: Outcome = "agrees"
    words, seen = "agree with each other bit for bit", "identical"
    if not _identical(chains):
        outcome, words = "differs", "differ among themselves"
        seen = f"up to {_noise(chains):.3g} relative"
    return Finding(
        name=DETERMINISM,
        outcome=outcome,
        source="experiment",
        summary=f"{len(chains)} replays {words}",
        expected="identical digests",
        seen=seen,
        trials=tuple(answer.trial.key for answer in answers),
    )


def _read_noisy(window: _Window, chains: Sequence[Chain], where: Where) -> Finding:
    """Replays that differ among themselves: production counts only beyond their noise."""
    production = window.setting.production
    noise = _noise(chains)
    distance = relative_noise(production, chains[0])
    ratio = float("inf")
    if noise > 0:
        ratio = distance / noise
    seen = f"production against replay {distance:.3g}, replay against replay {noise:.3g}"
    if ratio <= NOISE_BAND:
        summary = f"within measured noise over {window.span}"
        return window.finding("agrees", summary, seen=seen, magnitude=ratio)
    step = _first_beyond(production, chains[0], noise)
    if step is None:
        step = where.step
    summary = (
        f"production lies {ratio:.3g} times the measured noise from its replay, first beyond "
        f"it at step {step}"
    )
    return window.finding("differs", summary, where=Where(step=step), seen=seen, magnitude=ratio)


def _first_beyond(production: Chain, chain: Chain, noise: float) -> int | None:
    """The first step at which a scalar lies beyond the noise.

    Digests of a noisy run part at its first step, so they do not say where a difference begins.
    """
    for step in sorted(chain):
        distance = relative_noise({step: production.get(step, {})}, {step: chain[step]})
        if distance > NOISE_BAND * noise:
            return step
    return None


def _noise(chains: Sequence[Chain]) -> float:
    return max(relative_noise(left, right) for left, right in combinations(chains, 2))


def _identical(chains: Sequence[Chain]) -> bool:
    return all(compare(left, right).where is None for left, right in combinations(chains, 2))


def _against_production(setting: Setting, answer: Answer) -> Comparison:
    return compare(setting.production, by_step(answer.steps))


def _who(where: Where) -> str:
    if where.rank is None:
        return ""
    return f", on rank {where.rank} alone"


def _named(comparison: Comparison, where: Where) -> str:
    """The first links that differ at the place, and how many more there are."""
    if comparison.where is None or comparison.where.stage != where.stage:
        return str(where.key)
    return listed(comparison.keys, most=NUM_NAMED)
