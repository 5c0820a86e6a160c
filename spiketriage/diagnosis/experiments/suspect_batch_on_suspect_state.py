"""2×2, the cell that should reproduce: the suspect batch on the state just before the suspect step.

It never tells batch from state by itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from spiketriage.diagnosis.answer import Answer
from spiketriage.diagnosis.experiment import Arm, not_testable, read_cell
from spiketriage.diagnosis.role import TESTS_CAUSES, Emission
from spiketriage.diagnosis.setting import Setting
from spiketriage.nouns.incident import Finding

NAME = "suspect-batch/suspect-state"
FACTOR = "batch"
ABOUT = "the suspect batch on the suspect state, against a clean batch on the same state"
EMITS = {NAME: Emission(role=TESTS_CAUSES)}


def arms(setting: Setting) -> tuple[Arm, ...]:
    """The suspect batch against the first clean one."""
    if not setting.clean:
        return ()
    control = setting.probe(batch=setting.clean[0])
    return (Arm(control=control, variant=setting.probe(batch=setting.suspect)),)


def read(setting: Setting, answers: Mapping[str, Answer]) -> Finding:
    """Anomalous or not."""
    chosen = tuple(arm.variant for arm in arms(setting))
    if not chosen:
        return not_testable(NAME, "no clean batch is on record")
    return read_cell(NAME, setting, answers, chosen, "the suspect batch on the suspect state")
