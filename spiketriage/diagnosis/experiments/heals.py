"""The suspect step with one factor changed, and whether it is ordinary then.

A cause that does not take the spike away with it is not the cause of the spike. This module never
says which factor is to blame.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from spiketriage.diagnosis.answer import Answer
from spiketriage.diagnosis.experiment import (
    Arm,
    Experiment,
    anomaly,
    not_testable,
    off,
    scales,
    vary,
)
from spiketriage.diagnosis.role import TESTS_MENTIONED
from spiketriage.diagnosis.setting import Setting
from spiketriage.nouns.incident import Finding, Outcome, Role, Where


@dataclass(frozen=True, slots=True, kw_only=True)
class Heals(Experiment):
    """The suspect step with `factor` at `value`; `phrase` is how a sentence about it begins.

    A `probe` passes the suspect batch alone, a `replay` executes the whole window.
    """

    value: str
    phrase: str
    by: Literal["probe", "replay"]
    role: Role = TESTS_MENTIONED

    def arms(self, setting: Setting) -> tuple[Arm, ...]:
        """The suspect step with and without the change."""
        if self.factor == "code" and setting.reference_code is None:
            return ()
        if self.by == "probe":
            control = setting.probe(batch=setting.suspect)
        else:
            control = setting.replay()
        return (vary(control, self.factor, self.value),)

    def read(self, setting: Setting, answers: Mapping[str, Answer]) -> Finding:
        """Ordinary or still anomalous."""
        arms = self.arms(setting)
        if not arms:
            return not_testable(self.name, self.missing)
        return read_suspect_step(self.name, setting, answers[arms[0].variant.key], self.phrase)


def read_suspect_step(name: str, setting: Setting, answer: Answer, phrase: str) -> Finding:
    """Whether the suspect step is ordinary in this answer (`agrees`), or anomalous (`differs`)."""
    if answer.not_testable:
        return not_testable(name, answer.not_testable)
    score = anomaly(answer, setting.suspect, setting.band)
    if math.isnan(score):
        return not_testable(name, f"{phrase}: the suspect step was not executed")
    outcome: Outcome = "differs"
    state = "still anomalous"
    if score <= setting.threshold:
        outcome, state = "agrees", "ordinary"
    return Finding(
        name=name,
        outcome=outcome,
        source="experiment",
        summary=f"{phrase}, step {setting.suspect} is {state}{off(score)}",
        where=Where(step=setting.suspect),
        expected=f"within {setting.threshold:.1f} scales",
        seen=scales(score),
        magnitude=score,
        trials=(answer.trial.key,),
    )


KERNEL = Heals(
    name="kernel-heals",
    factor="kernel",
    value="math",
    about="the suspect batch with the written-out attention: is it ordinary then?",
    phrase="with the written-out attention",
    by="probe",
    shares_controls=True,
)
PRECISION = Heals(
    name="precision-heals",
    factor="precision",
    value="fp32",
    about="the suspect batch in fp32: is it ordinary then?",
    phrase="in fp32",
    by="probe",
    shares_controls=True,
)
LOADER = Heals(
    name="loader-heals",
    factor="loader",
    value="verified",
    about="the suspect window through the verified loader: is the suspect step ordinary then?",
    phrase="through the verified loader",
    by="replay",
)
CODE = Heals(
    name="code-heals",
    factor="code",
    value="reference",
    about="the suspect window on the older code: is the suspect step ordinary then?",
    phrase="on the older code",
    by="replay",
)
