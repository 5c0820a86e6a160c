"""The suspect window on the code that made the older generations, instead of the deployed one (a rollback branch).

It means nothing unless the incident reproduces on the deployed code.
"""

from __future__ import annotations

from collections.abc import Mapping

from spiketriage.diagnosis.compare import by_step, compare
from spiketriage.diagnosis.experiment import Arm, not_testable
from spiketriage.diagnosis.launch import Answer
from spiketriage.diagnosis.setting import Setting
from spiketriage.records import Finding, Where

NAME = "reference-code"
FACTOR = "code"
ABOUT = "the code of the older generations instead of the deployed one, over the suspect window"


def arms(setting: Setting) -> tuple[Arm, ...]:
    """The replay on each code."""
    if setting.reference_code is None:
        return ()
    return (Arm(control=setting.replay(), variant=setting.replay(code="reference")),)


def read(setting: Setting, answers: Mapping[str, Answer]) -> Finding:
    """The first link in which the two codes' results differ."""
    found = arms(setting)
    if not found:
        return not_testable(NAME, "no older code is on disk, or it is the deployed one")
    control, variant = answers[found[0].control.key], answers[found[0].variant.key]
    comparison = compare(by_step(control.steps), by_step(variant.steps))
    where = comparison.where
    if where is None:
        summary, outcome = f"both codes agree bit for bit over {comparison.num_steps} steps", "agrees"
    else:
        summary, outcome = f"the codes part at step {where.step}, {where.stage} {where.key}", "differs"
    return Finding(
        name=NAME,
        outcome=outcome,  # type: ignore[arg-type]
        source="experiment",
        summary=summary,
        where=where or Where(),
        expected="identical digests",
        seen=outcome,
        trials=(found[0].control.key, found[0].variant.key),
    )
