"""What every member of every tuple owes.

A new check, experiment, cause, fault or collector is tested by being listed.

It never lists a member by name.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from command_line import call
from emitters import EMITTED, emitters
from run_folder import write_run
from synthetic_view import SyntheticRun

import spiketriage
from spiketriage.diagnosis.cause import Cause
from spiketriage.diagnosis.causes import CAUSES
from spiketriage.diagnosis.causes.data import DATA
from spiketriage.diagnosis.causes.numerics import NUMERICS
from spiketriage.diagnosis.causes.optimization import OPTIMIZATION
from spiketriage.diagnosis.causes.systems import SYSTEMS
from spiketriage.diagnosis.checks import CHECKS, continuity
from spiketriage.diagnosis.experiment import Arm, lint
from spiketriage.diagnosis.experiments import EXPERIMENTS
from spiketriage.diagnosis.role import TESTS_CAUSES, stamp
from spiketriage.errors import RefusedError
from spiketriage.evidence.collectors import COLLECTORS
from spiketriage.practice.rehearsal.faults import FAULTS
from spiketriage.runbook.check import check_all
from spiketriage.wire.chain import STAGES
from spiketriage.wire.trial import Factors, Trial

PACKAGE = Path(spiketriage.__file__).parent
OUTCOMES = {"agrees", "differs", "nonfinite"}
TUPLES: dict[str, tuple[str, ...]] = {
    "CHECKS": tuple(member.NAME for member in CHECKS),
    "EXPERIMENTS": tuple(member.name for member in EXPERIMENTS),
    "CAUSES": tuple(member.name for member in CAUSES),
    "FAULTS": tuple(member.NAME for member in FAULTS),
    "COLLECTORS": tuple(member.name for member in COLLECTORS),
}
FIELDS = (
    continuity.ONE_TENSOR,
    continuity.SEVERAL_TENSORS,
)  # places that a check tells apart beside the stages
FOLDERS = {
    PACKAGE / "diagnosis" / "checks": CHECKS,
    PACKAGE / "diagnosis" / "experiments": EXPERIMENTS,
    PACKAGE / "practice" / "rehearsal" / "faults": FAULTS,
}


def as_module(member: object) -> ModuleType:
    """The file of a member: itself, or where the kind of a row in a table stands."""
    if isinstance(member, ModuleType):
        return member
    return sys.modules[type(member).__module__]


@pytest.mark.parametrize("name", TUPLES)
def test_names_are_unique_and_spelled_alike(name: str) -> None:
    names = TUPLES[name]
    assert len(names) > 1
    assert len(set(names)) == len(names)
    assert [one for one in names if one != one.lower() or " " in one or "_" in one] == []


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_each_file_of_a_folder_is_a_member_and_each_member_a_file(folder: Path) -> None:
    files = {path for path in folder.glob("*.py") if path.stem != "__init__"}
    assert {Path(str(as_module(member).__file__)) for member in FOLDERS[folder]} == files


def test_each_cause_stands_in_the_table_of_its_class() -> None:
    tables = {"data": DATA, "optimization": OPTIMIZATION, "numerics": NUMERICS, "systems": SYSTEMS}
    for cause_class, table in tables.items():
        assert {cause.cause_class for cause in table} == {cause_class}
    assert tuple(cause for table in tables.values() for cause in table) == CAUSES


@pytest.mark.parametrize(
    "member",
    [*CHECKS, *EXPERIMENTS, *FAULTS],
    ids=lambda member: f"{as_module(member).__name__.split('.')[-1]}",
)
def test_each_member_says_what_it_is_and_what_it_never_does(member: object) -> None:
    text = inspect.getdoc(as_module(member))
    assert text
    assert text.count(".") + text.count(";") >= 2


def test_each_finding_is_declared_once() -> None:
    names = [name for emits in emitters() for name in emits]
    assert [name for name in names if names.count(name) > 1] == []


def test_what_a_check_gives_on_a_run_is_what_it_declares() -> None:
    view = SyntheticRun().view(suspect=70)
    for check in CHECKS:
        findings = check.run(view)
        assert {finding.name for finding in findings} <= set(check.EMITS)
        assert stamp(findings, check.EMITS) == tuple(
            finding for finding in check_all(view) if finding.name in check.EMITS
        )
    with pytest.raises(AssertionError, match="is emitted and not declared"):
        stamp(CHECKS[0].run(view), {})


@pytest.mark.parametrize("name", EMITTED)
def test_each_finding_that_tests_causes_is_spoken_of_by_one(name: str) -> None:
    if EMITTED[name].role == TESTS_CAUSES:
        mentions = [cause.name for cause in CAUSES if cause.predicted(name, spiked=True)]
        assert mentions, "no cause predicts it, so it can only stand beside verdicts"


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.name)
def test_each_name_in_a_cause_is_a_finding_that_something_gives(cause: Cause) -> None:
    known = {*EMITTED, *cause.by_hand}
    named = {*cause.predicts, *cause.predicts_on_spike, *cause.deciding(spiked=True)}
    assert sorted((named | set(cause.located_by)) - known) == []
    assert set(cause.by_hand).isdisjoint(EMITTED)
    assert cause.decides
    assert cause.located_by
    assert cause.summary
    assert cause.repair


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.name)
def test_each_prediction_is_an_outcome_at_a_place_that_exists(cause: Cause) -> None:
    for name, options in cause.predicts.items():
        assert options, name
        for option in options:
            outcome, _, place = option.partition("@")
            assert outcome in OUTCOMES, (name, option)
            assert not place or place.removesuffix("#1") in STAGES + FIELDS, (name, option)


def test_no_two_causes_predict_the_same() -> None:
    predictions = [(sorted(cause.predicts.items()), sorted(cause.decides)) for cause in CAUSES]
    assert [each for each in predictions if predictions.count(each) > 1] == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.NAME)
def test_each_fault_names_the_cause_that_it_must_be_traced_to(fault: Any) -> None:
    assert callable(fault.plant)
    assert fault.ABOUT
    if fault.CAUSE is not None:
        assert fault.CAUSE == fault.NAME
        assert fault.CAUSE in TUPLES["CAUSES"]
    else:
        controls = {cause.name for cause in CAUSES if cause.verdict == "expected-behaviour"}
        assert fault.NAME == "healthy" or fault.NAME in controls


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_each_experiment_is_refused_with_a_second_factor_and_with_none(experiment: Any) -> None:
    values = {
        "state": "step-000040@41",
        "batch": "step 7",
        **dict.fromkeys(("code", "loader"), "reference"),
    }
    assert experiment.factor in Factors.__dataclass_fields__
    assert experiment.about
    assert experiment.missing
    control = Trial(
        kind="replay",
        purpose="",
        factors=Factors(state="step-000080@80"),
        first_step=81,
        last_step=82,
        run_key="k",
    )

    def varied(*factors: str) -> tuple[Arm, ...]:
        changed = {name: values.get(name, "other") for name in factors}
        return (
            Arm(
                control=control,
                variant=replace(control, factors=replace(control.factors, **changed)),
            ),
        )

    lint(experiment, varied(experiment.factor))
    second = next(name for name in Factors.__dataclass_fields__ if name != experiment.factor)
    for plan, told in (
        (varied(experiment.factor, second), second),
        (varied(second), second),
        (varied(), "nothing"),
    ):
        with pytest.raises(RefusedError, match=f"{experiment.factor}.*{told}") as caught:
            lint(experiment, plan)
        assert caught.value.exit_code == 3


def test_two_factors_in_one_branch_are_refused(tmp_path: Path) -> None:
    run = str(write_run(tmp_path / "run", spike_at=110))
    assert call("freeze", run, cwd=tmp_path).returncode == 0
    refused = call("branch", run, "--factor", "batch=skip", "--factor", "kernel=math", cwd=tmp_path)
    assert refused.returncode == 3
    assert "batch=skip, kernel=math" in refused.stderr
