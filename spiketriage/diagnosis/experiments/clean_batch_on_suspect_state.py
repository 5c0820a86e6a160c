"""2×2: clean batches on the state just before the suspect step.

Anomalous here means that the state is bad.

It never uses the suspect batch except as the control.
"""

from __future__ import annotations

from collections.abc import Mapping

from spiketriage.diagnosis.answer import Answer
from spiketriage.diagnosis.experiment import Arm, not_testable, read_cell
from spiketriage.diagnosis.role import TESTS_CAUSES, Emission
from spiketriage.diagnosis.setting import Setting
from spiketriage.nouns.incident import Finding

NAME = "clean-batch/suspect-state"
FACTOR = "batch"
ABOUT = "clean batches on the suspect state, against the suspect batch on the same state"
EMITS = {NAME: Emission(role=TESTS_CAUSES)}


def arms(setting: Setting) -> tuple[Arm, ...]:
    """Every clean batch against the suspect one."""
    control = setting.probe(batch=setting.suspect)
    result: list[Arm] = []
    for batch in setting.clean:
        result.append(Arm(control=control, variant=setting.probe(batch=batch)))
    return tuple(result)


def read(setting: Setting, answers: Mapping[str, Answer]) -> Finding:
    """Anomalous or not, by the median clean batch."""
    chosen = tuple(arm.variant for arm in arms(setting))
    if not chosen:
        return not_testable(NAME, "no clean batch is on record")
    return read_cell(NAME, setting, answers, chosen, "a clean batch on the suspect state")
