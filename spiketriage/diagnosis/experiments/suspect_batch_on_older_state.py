"""2×2: the suspect batch on an older good state.

Anomalous here means that the batch carries the incident.

It never advances the older state: the generation is used as it was saved.
"""

from __future__ import annotations

from collections.abc import Mapping

from spiketriage.diagnosis.answer import Answer
from spiketriage.diagnosis.experiment import Arm, not_testable, read_cell
from spiketriage.diagnosis.role import TESTS_CAUSES, Emission
from spiketriage.diagnosis.setting import Setting
from spiketriage.nouns.incident import Finding

NAME = "suspect-batch/older-state"
FACTOR = "state"
ABOUT = "the suspect batch on an older good state, against the same batch on the suspect state"
EMITS = {NAME: Emission(role=TESTS_CAUSES)}


def arms(setting: Setting) -> tuple[Arm, ...]:
    """The same batch on two states."""
    if setting.older_good is None:
        return ()
    control = setting.probe(batch=setting.suspect)
    return (Arm(control=control, variant=setting.probe(batch=setting.suspect, older=True)),)


def read(setting: Setting, answers: Mapping[str, Answer]) -> Finding:
    """Anomalous or not."""
    chosen = tuple(arm.variant for arm in arms(setting))
    if not chosen:
        return not_testable(NAME, "no older good generation is left")
    return read_cell(NAME, setting, answers, chosen, "the suspect batch on the older state")
