"""The judge over arbitrary findings.

It never names a cause that is untested or contradicted, and never forgets one.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from dossiers import spike
from emitters import EMITTED, finding
from hypothesis import given, settings
from hypothesis import strategies as st

from spiketriage.diagnosis.cause import Cause
from spiketriage.diagnosis.causes import CAUSES
from spiketriage.diagnosis.judge import (
    Case,
    allowed,
    explanations,
    is_against,
    judge,
    make_case,
    weigh,
)
from spiketriage.diagnosis.role import TESTS_CAUSES, TESTS_MENTIONED
from spiketriage.nouns.incident import Finding, Verdict, Where
from spiketriage.report.build import build
from spiketriage.report.markdown import render
from spiketriage.runbook.bisect import tell, verdict_data
from spiketriage.wire.chain import STAGES

NAMED = ("established", "supported")
UNNAMED = ("expected-behaviour", "telemetry-artefact")
NAMES = sorted(
    {name for cause in CAUSES for name in (*cause.predicts, *cause.deciding(spiked=True))}
)
BY_NAME = {cause.name: cause for cause in CAUSES}

findings_of = st.builds(
    lambda name, outcome, stage: finding(name, outcome, where=Where(stage=stage, step=7)),
    st.sampled_from(NAMES),
    st.sampled_from(("agrees", "agrees", "agrees", "differs", "nonfinite", "not testable")),
    st.none() | st.sampled_from(STAGES),
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Either arbitrary findings, or what one cause predicts with a few findings taken away or replaced."""
    spiked, cause = draw(st.booleans()), draw(st.sampled_from(CAUSES))
    found = {f.name: f for f in predicted(cause)} if draw(st.booleans()) else {}
    for name in draw(st.sets(st.sampled_from(NAMES), max_size=3)):
        found.pop(name, None)
    found |= {f.name: f for f in draw(st.lists(findings_of, max_size=3))}
    return make_case(
        found.values(),
        spike_step=8 if spiked else None,
        possible=draw(st.lists(st.sampled_from(NAMES), max_size=3)),
        steps_executed=1,
    )


def predicted(cause: Cause) -> list[Finding]:
    """A finding for every name, with the outcome that speaks for `cause` where it predicts one."""
    found = []
    for name in NAMES:
        options = cause.predicted(name, spiked=True) or ("agrees",)
        expected = "agrees" if "agrees" in options else options[0]
        outcome, _, stage = expected.partition("@")
        found.append(finding(name, outcome, where=Where(stage=stage or None, step=7)))
    return found


def spoken_for(case: Case) -> set[str]:
    return {f.name for f in case.tested}


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.name)
def test_each_cause_is_named_when_every_prediction_comes_true(cause: Cause) -> None:
    verdict = judge(
        CAUSES, make_case(predicted(cause), spike_step=8, possible=(), steps_executed=3)
    )
    if cause.verdict is not None:
        assert (verdict.kind, verdict.cause, verdict.explanation) == (
            cause.verdict,
            None,
            cause.summary,
        )
    else:
        assert (verdict.kind, verdict.cause, verdict.cause_class) == (
            "established",
            cause.name,
            cause.cause_class,
        )
    assert verdict.steps_executed == 3


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.name)
def test_no_cause_is_named_while_one_of_its_deciding_cells_is_untested(cause: Cause) -> None:
    for missing in cause.deciding(spiked=True):
        for found in (
            [one for one in predicted(cause) if one.name != missing],
            [
                replace(one, outcome="not testable") if one.name == missing else one
                for one in predicted(cause)
            ],
        ):
            verdict = judge(CAUSES, make_case(found, spike_step=8, possible=(), steps_executed=0))
            assert verdict.cause != cause.name, missing
            assert verdict.explanation != cause.summary, missing


@settings(max_examples=80, deadline=None)
@given(case=cases())
def test_a_named_cause_has_everything_decided_and_nothing_against_it(case: Case) -> None:
    verdict = judge(CAUSES, case)
    if verdict.kind not in NAMED:
        assert (verdict.cause, verdict.cause_class) == (None, None)
        return
    assert verdict.cause is not None
    cause = BY_NAME[verdict.cause]
    assert set(cause.deciding(spiked=case.spiked)) <= spoken_for(case)
    assert case.spiked or not cause.needs_spike
    for one in case.tested:
        if not allowed(cause, one, spiked=case.spiked):
            # What it does not explain is told beside it, and nobody is sure.
            assert cause.predicted(one.name, spiked=case.spiked) is None
            assert one.name in verdict.beside
            assert verdict.kind == "supported"
    assert any(case.findings[name].outcome != "agrees" for name in spoken_for(case))


@settings(max_examples=80, deadline=None)
@given(case=cases(), extra=findings_of)
def test_a_finding_against_a_cause_never_makes_it_stand_better(case: Case, extra: Finding) -> None:
    rank = {"contradicted": 0, "open": 1, "decided": 2}
    more = replace(case, findings={**case.findings, extra.name: extra})
    for cause in CAUSES:
        if allowed(cause, extra, spiked=case.spiked):
            continue
        after = weigh(cause, more)
        before = weigh(cause, case)
        if extra.outcome == "not testable":  # says nothing, so nothing may be gained by it
            assert rank[after.status] <= rank[before.status] or extra.name in case.findings
        elif cause.predicted(extra.name, spiked=case.spiked) is None:
            assert extra.name in after.unexplained
            assert rank[after.status] <= rank[before.status] or extra.name in case.findings
        else:
            assert after.status == "contradicted"
            assert extra.name in after.contradicting


@settings(max_examples=80, deadline=None)
@given(case=cases())
def test_an_anomaly_is_never_waved_through_and_silence_never_accuses(case: Case) -> None:
    verdict = judge(CAUSES, case)
    if case.spiked or any(is_against(one) for one in case.tested):
        assert verdict.kind != "nothing-found"
    elif any(one.outcome != "agrees" for one in case.tested):
        # how replays relate, and what a changed factor did to a spike, is nothing against a run
        # without one
        return
    else:
        # A cause may predict agreement at a stage or not at all, but agreement alone supports none.
        assert verdict.kind in ("nothing-found", "unresolved")
    if verdict.kind == "undetermined":
        assert verdict.candidates == tuple(view.name for view in explanations(verdict.causes))
    told = f"{verdict.explanation} {verdict.cause} {verdict.candidates}"
    for one in case.tested:
        if is_against(one) and one.name not in told:
            views = {view.name: view for view in verdict.causes}
            named = [name for name in (verdict.cause, *verdict.candidates) if name]
            is_explained = any(one.name not in views[name].unexplained for name in named)
            assert one.name in verdict.beside or is_explained or verdict.kind in UNNAMED


def test_a_later_step_that_production_does_not_repeat_is_something() -> None:
    found = [finding(name) for name in NAMES]
    verdict = judge(CAUSES, make_case(found, spike_step=None, possible=(), steps_executed=3))
    assert verdict.kind == "nothing-found"
    odd = [replace(one, outcome="differs") if one.name == "later-window" else one for one in found]
    verdict = judge(CAUSES, make_case(odd, spike_step=None, possible=(), steps_executed=3))
    assert verdict.kind == "unresolved"
    assert "later-window" in verdict.explanation


def test_context_is_left_out() -> None:
    context = Finding(name="continuity", outcome="differs", summary="", judged=False)
    case = make_case([context], spike_step=None, possible=(), steps_executed=0)
    assert case.findings == {}
    assert judge(CAUSES, case).kind == "unresolved"


def test_two_causes_that_fit_are_named_as_a_set() -> None:
    moments = finding("restored-optimizer", "differs")
    verdict = judge(
        CAUSES,
        make_case([moments], spike_step=None, possible=("reference-loader",), steps_executed=0),
    )
    assert verdict.kind == "undetermined"
    assert verdict.candidates == ("stale-optimizer", "optimizer-not-restored")
    assert verdict.cause is None
    assert verdict.not_tested == ("reference-loader",)


# --- what no cause predicts


def with_beside(cause: Cause, name: str) -> Verdict:
    """The verdict on all that establishes `cause`, with one finding that it says nothing of."""
    found = {one.name: one for one in predicted(cause)}
    found[name] = finding(name, "differs")
    case = make_case(found.values(), spike_step=8, possible=(), steps_executed=3)
    return judge(CAUSES, case)


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.name)
def test_a_finding_that_a_cause_does_not_predict_never_silences_it(cause: Cause) -> None:
    for name, emission in EMITTED.items():
        if cause.predicted(name, spiked=True) is not None:
            continue  # what it says itself, it is held to
        verdict = with_beside(cause, name)
        assert cause.name in (verdict.cause, *verdict.candidates) or verdict.kind == cause.verdict
        if emission.role == TESTS_MENTIONED:
            assert name not in verdict.beside  # the experiments' table has it
            continue
        if emission.role == TESTS_CAUSES:
            assert verdict.kind in ("supported", "undetermined"), name
        others = [BY_NAME[other] for other in verdict.candidates if other != cause.name]
        claimed = any(other.predicted(name, spiked=True) for other in others)
        assert name in verdict.beside or claimed, name


def test_what_is_told_beside_the_verdict_stands_on_every_page() -> None:
    for name, emission in EMITTED.items():
        cause = BY_NAME["shard-bitrot"]
        if emission.role == TESTS_MENTIONED or cause.predicted(name, spiked=True) is not None:
            continue
        verdict = with_beside(cause, name)
        aside = finding(name, "differs", summary=f"the words of {name}")
        summaries = {one.name: one.summary for one in (*predicted(cause), aside)}
        summaries[name] = aside.summary
        dossier = replace(spike(), findings=(*spike().findings, aside), verdict=verdict)
        assert aside.summary in "\n".join(tell(verdict, summaries))
        if verdict.cause is not None:
            assert name in verdict_data(verdict)["beside"]
            banner = build(dossier).banner
            assert aside.summary in banner.besides
            assert aside.summary in render(build(dossier))


def test_a_finding_that_is_evidence_of_another_cause_leaves_a_set_that_holds_both() -> None:
    found = {one.name: one for one in predicted(BY_NAME["shard-bitrot"])}
    found["index-identity"] = finding("index-identity", "differs")
    verdict = judge(CAUSES, make_case(found.values(), spike_step=8, possible=(), steps_executed=3))
    assert verdict.kind == "undetermined"
    assert set(verdict.candidates) == {"shard-bitrot", "index-changed"}


def test_nobody_says_that_all_is_well_while_something_is_unexplained() -> None:
    for name in ("rare-but-clean-batch", "metric-artefact"):
        verdict = with_beside(BY_NAME[name], "restored-rng")
        assert (verdict.kind, verdict.candidates) == ("undetermined", (name,))
        assert verdict.beside == ("restored-rng",)


def test_a_cause_is_held_to_what_it_says_in_its_deciding_cells() -> None:
    found = {one.name: one for one in predicted(BY_NAME["hyperparameter-change"])}
    found["content-profile"] = finding("content-profile", "differs")
    verdict = judge(CAUSES, make_case(found.values(), spike_step=8, possible=(), steps_executed=3))
    assert "hyperparameter-change" not in (verdict.cause, *verdict.candidates)


@pytest.mark.parametrize("rank", [0, 1, None])
def test_ranks_that_have_parted_do_not_make_an_exact_fault_one_of_the_environment(
    rank: int | None,
) -> None:
    """A replay saw step, rank and tensor.

    A later window that begins on other weights is what parted ranks look like, not a machine that
    computes differently.
    """
    for name in ("optimizer-corruption", "transient-compute-error"):
        found = {one.name: one for one in predicted(BY_NAME[name])}
        place = Where(step=7, stage=found["replay"].where.stage, key="blocks.0.up.weight", rank=1)
        if place.stage == "activations#1" or place.stage == "optimizer#1":
            place = replace(place, stage=place.stage.removesuffix("#1"))
        parted = Where(step=60, stage="params_before", key="blocks.0.up.weight", rank=rank)
        found["replay"] = finding("replay", "differs", where=place)
        found["later-window"] = finding("later-window", "differs", where=parted)
        found["ranks-params-after"] = finding("ranks-params-after", "differs")
        case = make_case(found.values(), spike_step=None, possible=(), steps_executed=9)
        verdict = judge(CAUSES, case)
        assert (verdict.kind, verdict.cause, verdict.where) == ("established", name, place)
        stage = "activations"
        found["later-window"] = finding(
            "later-window", "differs", where=replace(parted, stage=stage)
        )
        case = make_case(found.values(), spike_step=None, possible=(), steps_executed=9)
        assert judge(CAUSES, case).cause != name


def test_a_damaged_generation_is_told_beside_any_verdict_and_weighs_in_none() -> None:
    damage = finding("generation-digests", "differs", judged=False)
    quiet = [finding(name) for name in NAMES]
    before = judge(CAUSES, make_case(quiet, spike_step=None, possible=(), steps_executed=3))
    after = judge(
        CAUSES, make_case([*quiet, damage], spike_step=None, possible=(), steps_executed=3)
    )
    assert after == replace(before, beside=("generation-digests",))
    assert after.kind == "nothing-found"
