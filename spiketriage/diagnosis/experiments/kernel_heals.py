"""The suspect step with the written-out attention, that factor alone changed, and whether it is ordinary then.

A cause that does not take the spike away with it is not the cause of the spike.
"""

from __future__ import annotations

from collections.abc import Mapping

from spiketriage.diagnosis.answer import Answer
from spiketriage.diagnosis.experiment import Arm, not_testable, read_heals
from spiketriage.diagnosis.role import TESTS_MENTIONED, Emission
from spiketriage.diagnosis.setting import Setting
from spiketriage.nouns.incident import Finding

NAME = "kernel-heals"
FACTOR = "kernel"
ABOUT = "the suspect batch with the written-out attention: is it ordinary then?"
EMITS = {NAME: Emission(role=TESTS_MENTIONED)}


def arms(setting: Setting) -> tuple[Arm, ...]:
    """The suspect step with and without the change."""
    return (
        Arm(
            control=setting.probe(batch=setting.suspect),
            variant=setting.probe(batch=setting.suspect, kernel="math"),
        ),
    )


def read(setting: Setting, answers: Mapping[str, Answer]) -> Finding:
    """Ordinary or still anomalous."""
    found = arms(setting)
    if not found:
        return not_testable(NAME, "what the change needs is not on disk")
    return read_heals(NAME, setting, answers, found[0], "with the written-out attention")
