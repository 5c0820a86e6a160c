"""The suspect batch and clean ones, with fp32 as the reference for the deployed precision.

It never counts an effect that clean batches show too.
"""

from __future__ import annotations

from collections.abc import Mapping

from spiketriage.diagnosis.answer import Answer
from spiketriage.diagnosis.experiment import Arm, read_reference, reference_arms
from spiketriage.diagnosis.role import TESTS_CAUSES, Emission
from spiketriage.diagnosis.setting import Setting
from spiketriage.nouns.incident import Finding

NAME = "reference-precision"
FACTOR = "precision"
ABOUT = "fp32 instead of the deployed precision, on the suspect batch and on clean ones"
EMITS = {NAME: Emission(role=TESTS_CAUSES)}


def arms(setting: Setting) -> tuple[Arm, ...]:
    """Suspect and clean batches, with and without the reference."""
    return reference_arms(setting, precision="fp32")


def read(setting: Setting, answers: Mapping[str, Answer]) -> Finding:
    """The effect on the suspect batch in units of the effect on clean ones."""
    return read_reference(NAME, setting, answers, arms(setting))
