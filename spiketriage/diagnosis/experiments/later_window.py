"""One step replayed from a generation after the incident, and whether production still differs from it.

It tells what happened once from what goes on, and never touches the suspect window.
"""

from __future__ import annotations

from collections.abc import Mapping

from spiketriage.diagnosis.answer import Answer
from spiketriage.diagnosis.compare import by_step, compare
from spiketriage.diagnosis.experiment import Arm, not_testable, read_difference
from spiketriage.diagnosis.role import TESTS_CAUSES, Emission
from spiketriage.diagnosis.setting import Setting
from spiketriage.nouns.incident import Finding

NAME = "later-window"
FACTOR = "state"
ABOUT = "one step from a generation after the incident, against what production did there"
EMITS = {NAME: Emission(role=TESTS_CAUSES)}


def arms(setting: Setting) -> tuple[Arm, ...]:
    """The later step, with the suspect window's replay as the control that differs."""
    later = setting.later_replay()
    if later is None:
        return ()
    return (Arm(control=setting.replay(), variant=later),)


def read(setting: Setting, answers: Mapping[str, Answer]) -> Finding:
    """Whether production repeats there bit for bit."""
    found = arms(setting)
    if not found:
        return not_testable(NAME, "no generation after the incident is on disk")
    trial = found[0].variant
    comparison = compare(setting.production, by_step(answers[trial.key].steps))
    if comparison.num_links == 0:
        return not_testable(NAME, f"production recorded no link of step {trial.first_step}")
    begun = f"step {trial.first_step}, from {trial.factors.generation},"
    return read_difference(
        NAME,
        comparison.where,
        same=f"{begun} repeats bit for bit: what happened, happened once",
        apart=f"{begun} differs from its replay too, first at",
        trials=(trial,),
    )
