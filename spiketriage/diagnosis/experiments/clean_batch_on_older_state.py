"""2×2, the clean control: clean batches on an older good state.

Anomalous here means stop blaming data.

It never involves the suspect step.
"""

from __future__ import annotations

from collections.abc import Mapping

from spiketriage.diagnosis.answer import Answer
from spiketriage.diagnosis.experiment import Arm, not_testable, read_cell
from spiketriage.diagnosis.role import TESTS_CAUSES, Emission
from spiketriage.diagnosis.setting import Setting
from spiketriage.nouns.incident import Finding

NAME = "clean-batch/older-state"
FACTOR = "state"
ABOUT = "clean batches on an older good state, against the same batches on the suspect state"
EMITS = {NAME: Emission(role=TESTS_CAUSES)}


def arms(setting: Setting) -> tuple[Arm, ...]:
    """The first clean batch on two states."""
    if setting.older_good is None:
        return ()
    result: list[Arm] = []
    for batch in setting.clean[:1]:
        result.append(
            Arm(control=setting.probe(batch=batch), variant=setting.probe(batch=batch, older=True))
        )
    return tuple(result)


def read(setting: Setting, answers: Mapping[str, Answer]) -> Finding:
    """Anomalous or not."""
    chosen = tuple(arm.variant for arm in arms(setting))
    if not chosen:
        return not_testable(NAME, "no older good generation or no clean batch is left")
    return read_cell(NAME, setting, answers, chosen, "a clean batch on the older state")
