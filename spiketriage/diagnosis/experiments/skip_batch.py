"""Leave the suspect batch out and go on.

If the steps after it are ordinary, this batch carried the incident.

It never says why the batch did.
"""

from __future__ import annotations

from collections.abc import Mapping

from spiketriage.diagnosis.answer import Answer
from spiketriage.diagnosis.experiment import Arm, anomaly, not_testable, scales
from spiketriage.diagnosis.role import TESTS_CAUSES, Emission
from spiketriage.diagnosis.setting import Setting
from spiketriage.nouns.incident import Finding, Where

NAME = "skip-batch"
FACTOR = "batch"
ABOUT = "the suspect window without the suspect batch, against the replay with it"
EMITS = {NAME: Emission(role=TESTS_CAUSES)}


def arms(setting: Setting) -> tuple[Arm, ...]:
    """The replay without the suspect step."""
    return (Arm(control=setting.replay(), variant=setting.replay(batch=f"skip {setting.suspect}")),)


def read(setting: Setting, answers: Mapping[str, Answer]) -> Finding:
    """Ordinary or still anomalous in the steps after the one left out."""
    trial = arms(setting)[0].variant
    answer = answers[trial.key]
    steps = range(setting.suspect + 1, trial.last_step + 1)
    scores = [anomaly(answer, step, setting.band) for step in steps]
    if answer.at(0, setting.suspect) is not None:
        return not_testable(
            NAME, f"step {setting.suspect} was executed although it was to be left out"
        )
    worst = max(scores)
    if worst <= setting.threshold:
        outcome = "agrees"
    else:
        outcome = "differs"
    return Finding(
        name=NAME,
        outcome=outcome,  # type: ignore[arg-type]
        source="experiment",
        summary=f"without step {setting.suspect}'s batch the next {len(scores)} steps are "
        f"{'ordinary' if outcome == 'agrees' else 'still anomalous'} ({scales(worst)} off at most)",
        where=Where(step=setting.suspect),
        expected=f"within {setting.threshold:.1f} scales",
        seen=scales(worst),
        magnitude=worst,
        trials=(trial.key,),
    )
