"""Read a replay.

The first link in which production and its repetition differ, or how far they agree.

It never calls a difference transient before three replays agree with each other bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from spiketriage.diagnosis.experiment import Arm, read_heals
from spiketriage.diagnosis.plan import REPLAY
from spiketriage.diagnosis.role import TESTS_CAUSES, TESTS_MENTIONED, Emission, stamp
from spiketriage.diagnosis.setting import Setting
from spiketriage.diagnosis.view import View
from spiketriage.nouns.incident import Finding, Where
from spiketriage.nouns.telemetry import LoadRecord

SPIKE_AGAIN, DETERMINISM = "replay-spike", "replay-determinism"
EMITS = {
    REPLAY: Emission(role=TESTS_CAUSES),
    SPIKE_AGAIN: Emission(role=TESTS_MENTIONED),
    DETERMINISM: Emission(role=TESTS_MENTIONED),
}
NUM_REPLAYS = 3  # bit-compared replays before anyone says "transient"
EXACT = (
    "restored",
    "ids",
    "content",
    "batch",
)  # no arithmetic lies before these: noise cannot explain them
NOISE_BAND = 10.0  # times the difference of two replays (DESIGN §6)


def production_loads(view: View, setting: Setting) -> tuple[LoadRecord, ...]:
    """The loads with which production itself began the window, if it did begin there."""
    attempts = {
        record.attempt
        for rank in view.telemetry.ranks
        if (record := view.telemetry.at(rank, setting.known_good_step + 1)) is not None
    }
    result: list[LoadRecord] = []
    for load in view.telemetry.loads:
        if (
            load.generation == setting.known_good
            and load.attempt in attempts
            and load.step == setting.known_good_step
        ):
            result.append(load)
    return tuple(result)


def first_look(view: View, setting: Setting, answer: Answer) -> Where | None:
    """Where one replay leaves production first; None when they are identical."""
    return (
        compare_loads(production_loads(view, setting), answer.loads)
        or _chains(setting, answer).where
    )


def read_replay(view: View, setting: Setting, answers: Sequence[Answer]) -> Finding:
    """The finding of all replays of the window together."""
    where = first_look(view, setting, answers[0])
    comparison = _chains(setting, answers[0])
    keys = tuple(answer.trial.key for answer in answers)
    span = (
        f"steps {setting.known_good_step + 1} to {answers[0].trial.last_step} from "
        f"{setting.known_good}"
    )
    if comparison.num_links == 0:
        return _finding(
            "not testable",
            f"replay and production share no link over {span}",
            Where(),
            keys,
            "",
            None,
        )
    if where is None:
        text = (
            f"bitwise identical over {span}: {comparison.num_links} links in "
            f"{comparison.num_steps} steps"
        )
        return _finding("agrees", text, Where(), keys, "every link identical", 0.0)
    chains = [by_step(answer.steps) for answer in answers]
    if len(chains) > 1 and where.stage not in EXACT and not _identical(chains):
        return _tolerant(setting.production, chains, where, keys, span)
    text = (
        f"production leaves its replay first at step {where.step}, {where.stage} "
        f"{where.key}{_who(where)}"
    )
    if len(chains) >= NUM_REPLAYS:
        text += f"; {len(chains)} replays agree with each other bit for bit"
    seen = (
        f"{comparison.prefix_steps} steps identical before it; differing there: "
        f"{_named(comparison, where)}"
    )
    return _finding("differs", text, where, keys, seen, None)


def replay_findings(view: View, setting: Setting, answers: Sequence[Answer]) -> tuple[Finding, ...]:
    """The replay's finding, whether replays agree with each other, and whether the spike came back in them."""
    findings = [read_replay(view, setting, answers)]
    if len(answers) >= NUM_REPLAYS:
        findings.append(_determinism(answers))
    if setting.spiked:
        arm = Arm(control=answers[0].trial, variant=answers[0].trial)
        findings.append(
            read_heals(SPIKE_AGAIN, setting, {answers[0].trial.key: answers[0]}, arm, "replayed")
        )
    return stamp(findings, EMITS)


def _determinism(answers: Sequence[Answer]) -> Finding:
    chains = [by_step(answer.steps) for answer in answers]
    same = _identical(chains)
    if same:
        words = "agree with each other bit for bit"
    else:
        words = "differ among themselves"
    return Finding(
        name=DETERMINISM,
        outcome="agrees" if same else "differs",
        source="experiment",
        summary=f"{len(chains)} replays {words}",
        expected="identical digests",
        seen="identical" if same else f"up to {_noise(chains):.3g} relative",
        trials=tuple(answer.trial.key for answer in answers),
    )


def _noise(chains: Sequence[Chain]) -> float:
    return max(relative_noise(left, right) for left, right in combinations(chains, 2))


def _tolerant(
    production: Chain, chains: Sequence[Chain], where: Where, keys: tuple[str, ...], span: str
) -> Finding:
    noise = _noise(chains)
    distance = relative_noise(production, chains[0])
    ratio = distance / noise if noise > 0 else float("inf")
    seen = f"production against replay {distance:.3g}, replay against replay {noise:.3g}"
    if ratio <= NOISE_BAND:
        return _finding("agrees", f"within measured noise over {span}", Where(), keys, seen, ratio)
    # Digests part at the first step of a noisy run: only a scalar beyond the noise says where it
    # begins.
    step = next(
        (n for n in sorted(chains[0]) if _is_beyond(production, chains[0], n, noise)), where.step
    )
    text = (
        f"production lies {ratio:.3g} times the measured noise from its replay, first beyond "
        f"it at step {step}"
    )
    return _finding("differs", text, Where(step=step), keys, seen, ratio)


def _is_beyond(production: Chain, chain: Chain, step: int, noise: float) -> bool:
    return (
        relative_noise({step: production.get(step, {})}, {step: chain[step]}) > NOISE_BAND * noise
    )


def _identical(chains: Sequence[Chain]) -> bool:
    return all(compare(left, right).where is None for left, right in combinations(chains, 2))


def _chains(setting: Setting, answer: Answer) -> Comparison:
    return compare(setting.production, by_step(answer.steps))


def _who(where: Where) -> str:
    if where.rank is None:
        return ""
    return f", on rank {where.rank} alone"


def _named(comparison: Comparison, where: Where) -> str:
    if comparison.where is None or comparison.where.stage != where.stage:
        return str(where.key)
    more = len(comparison.keys) - 3
    return ", ".join(comparison.keys[:3]) + (f" and {more} more" if more > 0 else "")


def _finding(
    outcome: str, text: str, where: Where, keys: tuple[str, ...], seen: str, magnitude: float | None
) -> Finding:
    return Finding(
        name=REPLAY,
        outcome=outcome,  # type: ignore[arg-type]
        source="experiment",
        summary=text,
        where=where,
        expected="production's chain, link by link",
        seen=seen,
        magnitude=magnitude,
        trials=keys,
    )
