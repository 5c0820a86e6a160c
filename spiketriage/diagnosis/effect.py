"""Prove by digest that an experiment's factor changed, and that nothing else did.

Real teams were misled by interventions that silently did not happen. This module never says what an
effect means.
"""

from __future__ import annotations

from collections.abc import Mapping

from spiketriage.diagnosis.answer import Answer
from spiketriage.diagnosis.experiment import Arm, Experiment
from spiketriage.diagnosis.setting import Setting

# What a reference computes by: a run that deploys this already is its own reference.
REFERENCES = {"precision": {"fp32"}, "kernel": {"math", "eager"}}


def without_effect(experiment: Experiment, setting: Setting, answers: Mapping[str, Answer]) -> str:
    """Why the factor is not proven to have changed alone; empty when every digest says it did."""
    complaints = [_complaint(experiment.factor, answers, arm) for arm in experiment.arms(setting)]
    # A reference may leave a single batch untouched; it must have touched one of them.
    if experiment.factor in REFERENCES and not all(complaints):
        return ""
    return next((complaint for complaint in complaints if complaint), "")


def _complaint(factor: str, answers: Mapping[str, Answer], arm: Arm) -> str:
    control, variant = answers[arm.control.key], answers[arm.variant.key]
    if variant.not_testable:
        return variant.not_testable
    if factor == "code":
        if _codes(control) == _codes(variant):
            return "both trials ran the same code"
        return ""
    if arm.variant.kind != "probe":
        # A skip proves itself by the step that it lacks, a loader by the state that it leaves.
        return ""
    same_batch = _links(control, "batch") == _links(variant, "batch")
    same_state = _links(control, "params_before") == _links(variant, "params_before")
    if factor == "batch" and (same_batch or not same_state):
        return "batch and state did not change as asked"
    if factor == "state" and (same_state or not same_batch):
        return "batch and state did not change as asked"
    if factor in ("batch", "state"):
        return ""
    if not (same_batch and same_state):
        return "batch or state changed along with the reference"
    if _is_changed(control, variant) or _is_reference(factor, control):
        return ""
    return (
        "the reference changed no digest, and the run does not say that it already computes "
        "this way"
    )


def _codes(answer: Answer) -> list[str]:
    return [identity.code_digest for identity in answer.identities]


def _links(answer: Answer, stage: str) -> dict[tuple[int, str], bytes]:
    """What every rank saw of `stage`, by rank and key."""
    links: dict[tuple[int, str], bytes] = {}
    for record in answer.steps:
        for link, digest in record.digests.items():
            if link.stage == stage:
                links[record.rank, link.key] = digest
    return links


def _is_reference(factor: str, control: Answer) -> bool:
    """Whether every rank says that what it deploys is the reference.

    Then nothing may change, and nothing is wrong.
    """
    deployed = {str(getattr(identity, factor)) for identity in control.identities}
    return bool(deployed) and deployed <= REFERENCES[factor]


def _is_changed(control: Answer, variant: Answer) -> bool:
    """Whether any link that the control recorded is another one in the variant."""
    for record in control.steps:
        other = variant.at(record.rank, record.step)
        if other is None:
            continue
        for link, digest in record.digests.items():
            if other.digests.get(link) != digest:
                return True
    return False
