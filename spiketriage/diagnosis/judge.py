"""Weigh the findings.

Which causes explain all of them, which are contradicted, what is untested, what may be said.

The judge reads predictions as data and never names a cause while one of its deciding cells is
untested.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spiketriage.diagnosis.cause import ASIDE, NEUTRAL, Cause
from spiketriage.nouns.incident import CauseView, Finding, Verdict, Where
from spiketriage.wire.chain import position

NOTHING_DONE = "too little was tested to say anything"
DAMAGE = ("generation-digests",)  # harms the next rollback, whatever caused this incident


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What the judge weighs.

    Judged findings by name, the step that spiked, and what could still be tried.

    `alarmed` says that something raised an alarm or was pointed at, even if loss and gradient norm
    look ordinary.

    `possible` are experiments that can still be run; `besides` are damages that no cause is asked
    to explain.
    """

    findings: Mapping[str, Finding]
    possible: tuple[str, ...]
    steps_executed: int
    spike_step: int | None = None
    alarmed: bool = False
    besides: tuple[str, ...] = ()

    @property
    def spiked(self) -> bool:
        """Whether something spiked at all."""
        return self.spike_step is not None


def make_case(
    findings: Iterable[Finding],
    *,
    spike_step: int | None,
    possible: Sequence[str],
    steps_executed: int,
    alarmed: bool = False,
) -> Case:
    """The case of the judged findings; context is left out."""
    findings = tuple(findings)
    judged = {finding.name: finding for finding in findings if finding.judged}
    besides = tuple(
        f.summary for f in findings if f.name in DAMAGE and not f.judged and f.outcome == "differs"
    )
    return Case(
        findings=judged,
        spike_step=spike_step,
        alarmed=alarmed,
        possible=tuple(possible),
        steps_executed=steps_executed,
        besides=besides,
    )


def allowed(cause: Cause, finding: Finding, *, spiked: bool) -> bool:
    """Whether `cause` allows this outcome, at this stage when it says a stage."""
    where = finding.where
    spellings = {
        finding.outcome,
        f"{finding.outcome}@{where.stage}",
        f"{finding.outcome}@{where.field}",
    }
    if where.rank is not None:
        spellings.add(f"{finding.outcome}@{where.stage}#1")
    return any(option in spellings for option in cause.allows(finding.name, spiked=spiked))


def deciding(cause: Cause, case: Case) -> tuple[str, ...]:
    """Cells that must be tested before `cause` may be named in this case."""
    return cause.decides + (cause.decides_on_spike if case.spiked else ())


def weigh(cause: Cause, case: Case) -> CauseView:
    """How one cause stands."""
    tested = {name: f for name, f in case.findings.items() if f.outcome != "not testable"}
    # What comes after the spike cannot have caused it: it speaks against a cause that lies there,
    # and of no other.
    late = {name for name, finding in tested.items() if _is_late(finding, case)}
    against = tuple(
        name
        for name, finding in tested.items()
        if (
            name in cause.located_by
            if name in late
            else not allowed(cause, finding, spiked=case.spiked)
        )
    )
    support = tuple(
        name
        for name, finding in tested.items()
        # What a cause leaves open speaks neither for it nor against it.
        if name not in late
        and "agrees" not in cause.allows(name, spiked=case.spiked)
        and allowed(cause, finding, spiked=case.spiked)
    )
    untested = tuple(name for name in deciding(cause, case) if name not in tested)
    status = (
        "contradicted"
        if against or (cause.needs_spike and not case.spiked)
        else ("open" if untested else "decided")
    )
    return CauseView(
        name=cause.name,
        cause_class=cause.cause_class,
        status=status,  # type: ignore[arg-type]
        supporting=support,
        contradicting=against,
        untested=untested,
    )


def _is_late(finding: Finding, case: Case) -> bool:
    """Whether what was found lies behind the loss and gradient of the step that spiked."""
    step = finding.where.step
    if finding.outcome == "agrees" or step is None or case.spike_step is None:
        return False
    behind = finding.where.stage is not None and position(finding.where.stage) >= position(
        "clip_lr"
    )
    return step > case.spike_step or (step == case.spike_step and behind)


def anomalies(case: Case) -> tuple[str, ...]:
    """Names of findings that speak against the run.

    What one changed factor did to a spike, and how replays relate to each other, is nothing against
    it; a step after the window that production does not repeat is, if no cause has claimed it.
    """
    silent = {*NEUTRAL} - {"later-window"}
    result: list[str] = []
    for name, finding in case.findings.items():
        if finding.outcome in ("differs", "nonfinite") and name not in silent:
            result.append(name)
    return tuple(result)


def judge(causes: Sequence[Cause], case: Case) -> Verdict:
    """The verdict that the findings allow."""
    views = tuple(weigh(cause, case) for cause in causes)
    by_name = {cause.name: cause for cause in causes}
    # A cause that nothing supports is not a suspect: silence is no evidence.
    alive = [view for view in views if view.status != "contradicted" and view.supporting]
    decided = [view for view in alive if view.status == "decided"]
    if len(decided) == 1 and (len(alive) == 1 or not _testable(alive, decided, case)):
        return _named(by_name[decided[0].name], sure=len(alive) == 1, views=views, case=case)
    if alive:
        names = tuple(view.name for view in alive)
        return _verdict(
            case, views, "undetermined", f"still possible: {', '.join(names)}", candidates=names
        )
    found = anomalies(case)
    if found and set(found) <= set(ASIDE) and case.spiked:
        marks = ", ".join(found)
        return _verdict(
            case,
            views,
            "unresolved",
            f"something spiked and left its marks ({marks}); nothing says why",
        )
    if found:
        together = " together" if len(found) > 1 else ""
        return _verdict(
            case, views, "unresolved", f"no known cause explains {', '.join(found)}{together}"
        )
    if case.alarmed or case.spiked:
        return _verdict(
            case,
            views,
            "unresolved",
            "something spiked, and no check or experiment found what differs",
        )
    if not _was_looked_at(case):
        return _verdict(case, views, "unresolved", NOTHING_DONE)
    return _verdict(
        case, views, "nothing-found", "no step differs: every check and replay that was done agrees"
    )


def _was_looked_at(case: Case) -> bool:
    """Whether silence means something.

    The window was replayed, and at least one check could be done.
    """
    replay = case.findings.get("replay")
    checked = any(
        f.source == "check" and f.outcome == "agrees" and f.name not in ASIDE
        for f in case.findings.values()
    )
    return replay is not None and replay.outcome == "agrees" and checked


def _testable(alive: Sequence[CauseView], decided: Sequence[CauseView], case: Case) -> bool:
    """Whether a rival could still be excluded by an experiment that can be run."""
    rivals = [view for view in alive if view not in decided]
    return any(name in case.possible for view in rivals for name in view.untested)


def _named(cause: Cause, *, sure: bool, views: tuple[CauseView, ...], case: Case) -> Verdict:
    where = locate(cause, case.findings)
    if cause.verdict is not None:
        return _verdict(
            case, views, cause.verdict, cause.summary, where=where, repair=cause.repair, cause=cause
        )
    kind, summary = "established" if sure else "supported", cause.summary
    if case.spike_step is not None and _is_remote(cause, where, case.spike_step):
        # Nothing shows the way from there to here: another fault, that left no trace of its own, is
        # not excluded.
        kind = "supported"
        summary += f"; the steps between it and the spike at {case.spike_step} are not explained"
    return _verdict(
        case, views, kind, summary, where=where, repair=cause.repair, cause=cause, named=True
    )


def _is_remote(cause: Cause, where: Where, spike_step: int) -> bool:
    """Whether something that happened once lies more than a step before the spike."""
    once = cause.allows("replay-spike", spiked=True) == ("agrees",)
    return once and where.step is not None and where.step < spike_step - 1


def locate(cause: Cause, findings: Mapping[str, Finding]) -> Where:
    """The cause's place: the first finding that it is located by, completed by the next ones."""
    merged: dict[str, object] = {}
    for name in cause.located_by:
        if name in findings:
            place = findings[name].where
        else:
            place = Where()
        for part in ("step", "stage", "key", "rank", "path", "field"):
            if merged.get(part) is None:
                merged[part] = getattr(place, part)
    return Where(**merged)  # type: ignore[arg-type]


def _verdict(
    case: Case,
    views: tuple[CauseView, ...],
    kind: str,
    explanation: str,
    *,
    where: Where | None = None,
    repair: str = "",
    cause: Cause | None = None,
    named: bool = False,
    candidates: tuple[str, ...] = (),
) -> Verdict:
    untested = {name for name, f in case.findings.items() if f.outcome == "not testable"} | set(
        case.possible
    )
    return Verdict(
        kind=kind,  # type: ignore[arg-type]
        cause=cause.name if cause is not None and named else None,
        cause_class=cause.cause_class if cause is not None and named else None,
        candidates=candidates,
        explanation="; besides, hash found: ".join((explanation, *case.besides)),
        where=where or Where(),
        causes=views,
        not_tested=tuple(sorted(untested)),
        repair=repair,
        next_experiment=None,
        steps_executed=case.steps_executed,
    )
