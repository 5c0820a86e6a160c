"""The judge over arbitrary findings.

It never names a cause that is untested or contradicted, and never forgets one.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spiketriage.diagnosis.cause import NEUTRAL, Cause
from spiketriage.diagnosis.causes import CAUSES
from spiketriage.diagnosis.judge import Case, allowed, judge, make_case, weigh
from spiketriage.nouns.incident import Finding, Where
from spiketriage.wire.chain import STAGES

NAMED = ("established", "supported")
NAMES = sorted(
    {
        name
        for cause in CAUSES
        for name in (*cause.predicts, *cause.decides, *cause.decides_on_spike)
    }
)
BY_NAME = {cause.name: cause for cause in CAUSES}

findings_of = st.builds(
    lambda name, outcome, stage: Finding(
        name=name, outcome=outcome, summary=name, where=Where(stage=stage, step=7)
    ),
    st.sampled_from(NAMES),
    st.sampled_from(("agrees", "agrees", "agrees", "differs", "nonfinite", "not testable")),
    st.none() | st.sampled_from(STAGES),
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Either arbitrary findings, or what one cause predicts with a few findings taken away or replaced."""
    spiked, cause = draw(st.booleans()), draw(st.sampled_from(CAUSES))
    found = {finding.name: finding for finding in predicted(cause)} if draw(st.booleans()) else {}
    for name in draw(st.sets(st.sampled_from(NAMES), max_size=3)):
        found.pop(name, None)
    found |= {finding.name: finding for finding in draw(st.lists(findings_of, max_size=3))}
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
        told = next(
            (
                text
                for text in cause.allows(name, spiked=True)
                if "agrees" not in cause.allows(name, spiked=True)
            ),
            "agrees",
        )
        outcome, _, stage = told.partition("@")
        found.append(
            Finding(
                name=name, outcome=outcome, summary=name, where=Where(stage=stage or None, step=7)
            )
        )
    return found


def spoken_for(case: Case) -> set[str]:
    return {name for name, finding in case.findings.items() if finding.outcome != "not testable"}


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
    for missing in (*cause.decides, *cause.decides_on_spike):
        for found in (
            [finding for finding in predicted(cause) if finding.name != missing],
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
    must = set(cause.decides) | (set(cause.decides_on_spike) if case.spiked else set())
    assert must <= spoken_for(case)
    assert case.spiked or not cause.needs_spike
    for name in spoken_for(case):
        finding = case.findings[name]
        assert allowed(cause, finding, spiked=case.spiked)
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
        if extra.outcome == "not testable":  # says nothing, so nothing may be gained by it
            assert (
                rank[after.status] <= rank[weigh(cause, case).status] or extra.name in case.findings
            )
        else:
            assert after.status == "contradicted"
            assert extra.name in after.contradicting


@settings(max_examples=80, deadline=None)
@given(case=cases())
def test_an_anomaly_is_never_waved_through_and_silence_never_accuses(case: Case) -> None:
    verdict = judge(CAUSES, case)
    against = [name for name in spoken_for(case) if case.findings[name].outcome != "agrees"]
    if case.spiked or any(name not in NEUTRAL or name == "later-window" for name in against):
        assert verdict.kind != "nothing-found"
    elif against:
        # how replays relate, and what a changed factor did to a spike, is nothing against a run
        # without one
        return
    else:
        # A cause may predict agreement at a stage or not at all, but agreement alone supports none.
        assert verdict.kind in ("nothing-found", "unresolved")
    assert (
        set(verdict.candidates)
        == {
            view.name
            for view in verdict.causes
            if view.status != "contradicted" and view.supporting
        }
        or verdict.kind != "undetermined"
    )


def test_a_later_step_that_production_does_not_repeat_is_something() -> None:
    found = [
        Finding(name=name, outcome="agrees", summary=name, where=Where(step=7)) for name in NAMES
    ]
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
    moments = Finding(name="restored-optimizer", outcome="differs", summary="")
    verdict = judge(
        CAUSES,
        make_case([moments], spike_step=None, possible=("reference-loader",), steps_executed=0),
    )
    assert verdict.kind == "undetermined"
    assert verdict.candidates == ("stale-optimizer", "optimizer-not-restored")
    assert verdict.cause is None
    assert verdict.not_tested == ("reference-loader",)
