"""Weigh the findings: which causes explain them, what is left unexplained, and what may be said.

The judge reads predictions and roles as data, and never names a cause while one of its deciding
cells is untested.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from spiketriage.diagnosis.cause import Cause
from spiketriage.diagnosis.role import AGAINST_THE_RUN, TESTS_CAUSES, TESTS_MENTIONED
from spiketriage.nouns.incident import CauseView, Finding, Verdict, VerdictKind, Where
from spiketriage.wire.chain import position

NOTHING_DONE = "too little was tested to say anything"

# What a finding does to one cause. `neutral` is also what lies outside of what the cause speaks of.
Bearing = Literal["supports", "neutral", "contradicts", "unexplained"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What the judge weighs.

    `findings` are the judged ones by name, `spike_step` the step that spiked, `possible` the
    experiments that can still be run. `alarmed` says that something raised an alarm or was pointed
    at, even if loss and gradient norm look ordinary. `context` names findings against the run that
    no cause is asked to explain: a damaged generation, a series that must not be believed.
    """

    findings: Mapping[str, Finding]
    possible: tuple[str, ...]
    steps_executed: int
    spike_step: int | None = None
    alarmed: bool = False
    context: tuple[str, ...] = ()

    @property
    def spiked(self) -> bool:
        """Whether something spiked at all."""
        return self.spike_step is not None

    @property
    def tested(self) -> tuple[Finding, ...]:
        """The findings that say something."""
        return tuple(f for f in self.findings.values() if f.outcome != "not testable")

    def is_behind_the_spike(self, finding: Finding) -> bool:
        """Whether it comes after the loss and the gradient that spiked, and so caused neither."""
        step, stage = finding.where.step, finding.where.stage
        if finding.outcome == "agrees" or step is None or self.spike_step is None:
            return False
        if step == self.spike_step:
            return stage is not None and position(stage) >= position("clip_lr")
        return step > self.spike_step


def make_case(
    findings: Iterable[Finding],
    *,
    spike_step: int | None,
    possible: Sequence[str],
    steps_executed: int,
    alarmed: bool = False,
) -> Case:
    """The case of the judged findings, and the names of the others that are against the run."""
    judged: dict[str, Finding] = {}
    context: list[str] = []
    for finding in findings:
        if finding.judged:
            judged[finding.name] = finding
        elif finding.role == AGAINST_THE_RUN and is_against(finding):
            context.append(finding.name)
    return Case(
        findings=judged,
        spike_step=spike_step,
        alarmed=alarmed,
        possible=tuple(possible),
        steps_executed=steps_executed,
        context=tuple(context),
    )


def is_against(finding: Finding) -> bool:
    """Whether something is not as it should be.

    What one changed factor did to a spike, and how replays relate to each other, never is: the
    causes that mention it speak of it.
    """
    return finding.outcome in ("differs", "nonfinite") and finding.role != TESTS_MENTIONED


# --- one cause


def allowed(cause: Cause, finding: Finding, *, spiked: bool) -> bool:
    """Whether `cause` can live with this outcome, at this stage when it says a stage."""
    where = finding.where
    spellings = {
        finding.outcome,
        f"{finding.outcome}@{where.stage}",
        f"{finding.outcome}@{where.field}",
    }
    if where.rank is not None:
        spellings.add(f"{finding.outcome}@{where.stage}#1")
    return not spellings.isdisjoint(cause.allows(finding.name, finding.role, spiked=spiked))


def weigh(cause: Cause, case: Case) -> CauseView:
    """How one cause stands."""
    by_bearing: dict[Bearing, list[str]] = {
        "supports": [],
        "neutral": [],
        "contradicts": [],
        "unexplained": [],
    }
    for finding in case.tested:
        by_bearing[bearing(cause, finding, case)].append(finding.name)
    tested = {finding.name for finding in case.tested}
    untested = [name for name in cause.deciding(spiked=case.spiked) if name not in tested]
    status: Literal["decided", "open", "contradicted"] = "decided"
    if by_bearing["contradicts"] or (cause.needs_spike and not case.spiked):
        status = "contradicted"
    elif untested:
        status = "open"
    return CauseView(
        name=cause.name,
        cause_class=cause.cause_class,
        status=status,
        supporting=tuple(by_bearing["supports"]),
        contradicting=tuple(by_bearing["contradicts"]),
        untested=tuple(untested),
        unexplained=tuple(by_bearing["unexplained"]),
    )


def bearing(cause: Cause, finding: Finding, case: Case) -> Bearing:
    """What one tested finding does to one cause.

    Only what the cause itself speaks of can contradict it. What it does not predict is left
    unexplained, if every cause has to live with such findings.
    """
    if case.is_behind_the_spike(finding):
        # It speaks against a cause that lies there, and of no other.
        if finding.name in cause.located_by:
            return "contradicts"
        return "neutral"
    predicted = cause.predicted(finding.name, spiked=case.spiked)
    if allowed(cause, finding, spiked=case.spiked):
        # What a cause leaves open speaks neither for it nor against it.
        if predicted is None or "agrees" in predicted:
            return "neutral"
        return "supports"
    if predicted is None:
        return "unexplained"
    return "contradicts"


def _accounts_for(cause: Cause, finding: Finding, case: Case) -> bool:
    """Whether `cause` speaks of this finding, so that it need not be told beside the verdict."""
    if case.is_behind_the_spike(finding):
        return False
    is_mentioned = cause.predicted(finding.name, spiked=case.spiked) is not None
    return is_mentioned and allowed(cause, finding, spiked=case.spiked)


# --- all causes


def explanations(views: Sequence[CauseView]) -> tuple[CauseView, ...]:
    """The causes that something supports, nothing contradicts, and no other one outdoes."""
    # A cause that nothing supports is not a suspect: silence is no evidence.
    alive = [view for view in views if view.status != "contradicted" and view.supporting]
    return tuple(view for view in alive if not _is_outdone(view, alive))


def _is_outdone(view: CauseView, others: Sequence[CauseView]) -> bool:
    """Whether one of `others` explains all that `view` explains, and more.

    What was decided is never outdone: what another cause leaves open is no evidence against it.
    """
    if view.status == "decided":
        return False
    return any(set(other.unexplained) < set(view.unexplained) for other in others)


def suspects_of(causes: Sequence[Cause], case: Case) -> tuple[Cause, ...]:
    """The causes worth an experiment; where nothing supports one, all that may still be."""
    views = [weigh(cause, case) for cause in causes]
    names = {view.name for view in explanations(views)}
    if not names:
        names = {
            view.name for view in views if view.status != "contradicted" and not view.unexplained
        }
    return tuple(cause for cause in causes if cause.name in names)


def anomalies(case: Case) -> tuple[str, ...]:
    """Names of findings that speak against the run."""
    return tuple(name for name, finding in case.findings.items() if is_against(finding))


# --- the verdict


def judge(causes: Sequence[Cause], case: Case) -> Verdict:
    """The verdict that the findings allow."""
    by_name = {cause.name: cause for cause in causes}
    views = tuple(weigh(cause, case) for cause in causes)
    left = explanations(views)
    if not left:
        return _unexplained(case, views)
    named = _nameable(left, by_name, case)
    if named is not None:
        return _named(by_name[named.name], named, views, case, is_alone=len(left) == 1)
    names = tuple(view.name for view in left)
    return _verdict(
        case,
        views,
        "undetermined",
        f"still possible: {', '.join(names)}",
        candidates=[by_name[name] for name in names],
    )


def _nameable(
    left: Sequence[CauseView], by_name: Mapping[str, Cause], case: Case
) -> CauseView | None:
    """The one decided cause among those left, unless something stands against naming it alone."""
    decided = [view for view in left if view.status == "decided"]
    if len(decided) != 1:
        return None
    view = decided[0]
    for rival in left:
        if rival is view:
            continue
        if not set(rival.untested).isdisjoint(case.possible):
            return None  # an experiment that can be run may still exclude the rival
        if not set(rival.supporting).isdisjoint(view.unexplained):
            return None  # what this cause leaves unexplained is evidence of the rival
    if view.unexplained and by_name[view.name].verdict is not None:
        return None  # nobody may say that all is well while something is unexplained
    return view


def _unexplained(case: Case, views: tuple[CauseView, ...]) -> Verdict:
    """The verdict where no cause is left."""
    against = anomalies(case)
    names = ", ".join(against)
    kind: VerdictKind = "unresolved"
    if against and case.spiked and not any(_tests_causes(case.findings[n]) for n in against):
        text = f"something spiked and left its marks ({names}); nothing says why"
    elif against:
        together = " together" if len(against) > 1 else ""
        text = f"no known cause explains {names}{together}"
    elif case.alarmed or case.spiked:
        text = "something spiked, and no check or experiment found what differs"
    elif not _was_looked_at(case):
        text = NOTHING_DONE
    else:
        kind = "nothing-found"
        text = "no step differs: every check and replay that was done agrees"
    return _verdict(case, views, kind, text, in_text=against)


def _tests_causes(finding: Finding) -> bool:
    return finding.role == TESTS_CAUSES


def _was_looked_at(case: Case) -> bool:
    """Whether silence means something: the window was replayed, and a check of causes was done."""
    replay = case.findings.get("replay")
    if replay is None or replay.outcome != "agrees":
        return False
    for finding in case.findings.values():
        if finding.source == "check" and finding.outcome == "agrees" and _tests_causes(finding):
            return True
    return False


def _named(
    cause: Cause, view: CauseView, views: tuple[CauseView, ...], case: Case, *, is_alone: bool
) -> Verdict:
    if cause.verdict is not None:
        return _verdict(case, views, cause.verdict, cause.summary, settled=cause)
    kind: VerdictKind = "established" if is_alone else "supported"
    summary = cause.summary
    if view.unexplained:
        kind = "supported"
        summary += f"; it does not explain {', '.join(view.unexplained)}"
    if _is_remote(cause, case):
        # Nothing shows the way from there to here: another fault, that left no trace of its own, is
        # not excluded.
        kind = "supported"
        summary += f"; the steps between it and the spike at {case.spike_step} are not explained"
    return _verdict(case, views, kind, summary, settled=cause)


def _is_remote(cause: Cause, case: Case) -> bool:
    """Whether something that happened once lies more than a step before the spike."""
    is_once = cause.predicted("replay-spike", spiked=True) == ("agrees",)
    step = locate(cause, case.findings).step
    if case.spike_step is None or step is None:
        return False
    return is_once and step < case.spike_step - 1


def locate(cause: Cause, findings: Mapping[str, Finding]) -> Where:
    """The cause's place: the first finding that it is located by, completed by the next ones."""
    merged: dict[str, object] = {}
    for name in cause.located_by:
        if name not in findings:
            continue
        for part in ("step", "stage", "key", "rank", "path", "field"):
            if merged.get(part) is None:
                merged[part] = getattr(findings[name].where, part)
    return Where(**merged)  # type: ignore[arg-type]


def _verdict(
    case: Case,
    views: tuple[CauseView, ...],
    kind: VerdictKind,
    explanation: str,
    *,
    settled: Cause | None = None,
    candidates: Sequence[Cause] = (),
    in_text: Sequence[str] = (),
) -> Verdict:
    """A verdict on `settled`, by name if it is a fault, or one that leaves `candidates`."""
    explained_by = candidates
    named = None
    if settled is not None:
        explained_by = [settled]
    if settled is not None and settled.verdict is None:
        named = settled
    untested = {name for name, f in case.findings.items() if f.outcome == "not testable"}
    return Verdict(
        kind=kind,
        cause=named.name if named else None,
        cause_class=named.cause_class if named else None,
        candidates=tuple(cause.name for cause in candidates),
        beside=_beside(explained_by, case, in_text),
        explanation=explanation,
        where=locate(settled, case.findings) if settled else Where(),
        causes=views,
        not_tested=tuple(sorted(untested | set(case.possible))),
        repair=settled.repair if settled else "",
        next_experiment=None,
        steps_executed=case.steps_executed,
    )


def _beside(explained_by: Sequence[Cause], case: Case, in_text: Sequence[str]) -> tuple[str, ...]:
    """Findings against the run that nothing in the verdict speaks of, then the context."""
    names = []
    for name in anomalies(case):
        finding = case.findings[name]
        is_explained = any(_accounts_for(cause, finding, case) for cause in explained_by)
        if name not in in_text and not is_explained:
            names.append(name)
    return (*names, *case.context)
