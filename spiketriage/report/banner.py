"""The top of the report: verdict, cause, place and a summary in exactly three sentences.

It says only what the verdict says; it never guesses a cause of its own.
"""

from __future__ import annotations

from spiketriage.nouns.incident import Dossier, Verdict
from spiketriage.report import commands, words
from spiketriage.report.model import Banner, Tone
from spiketriage.report.sections import suspect_step

TONES: dict[str, Tone] = {
    "established": "bad",
    "supported": "bad",
    "undetermined": "warn",
    "telemetry-artefact": "warn",
    "expected-behaviour": "good",
    "unresolved": "warn",
    "nothing-found": "good",
}

MAX_UNTESTED, SHOWN_UNTESTED = 10, 5


def build(dossier: Dossier) -> Banner:
    """Banner of one incident."""
    verdict = dossier.verdict
    return Banner(
        verdict=verdict.kind if verdict else "no verdict yet",
        tone=TONES[verdict.kind] if verdict else "warn",
        headline=_headline(verdict),
        cause=_cause(verdict),
        cause_class=(verdict and verdict.cause_class) or "–",
        where=_where(dossier),
        summary=(_happened(dossier), _means(verdict), _basis(dossier)),
        repair=words.plain(verdict.repair) if verdict and verdict.repair else "none named",
        besides=_besides(dossier),
        not_tested=_not_tested(verdict),
        next_command=words.plain(commands.next_command(dossier)),
    )


def _headline(verdict: Verdict | None) -> str:
    if verdict is None:
        return "No verdict yet"
    name = words.plain(verdict.cause or "unnamed")
    left = len(verdict.candidates)
    return {
        "established": f"Cause: {name}",
        "supported": f"Cause, not yet proven: {name}",
        "undetermined": f"{words.sentence(words.count(left, 'cause'))} left",
        "telemetry-artefact": "The telemetry is wrong, the training is not",
        "expected-behaviour": "Nothing to repair",
        "unresolved": "No known cause fits",
        "nothing-found": "Nothing speaks against this run",
    }[verdict.kind]


def _cause(verdict: Verdict | None) -> str:
    if verdict is None:
        return "–"
    if verdict.cause:
        return words.plain(verdict.cause)
    return " or ".join(map(words.plain, verdict.candidates)) or "none"


def _not_tested(verdict: Verdict | None) -> tuple[str, ...]:
    """What was not tested; a section of its own has the whole list where that is long."""
    if verdict is None:
        return ()
    names = tuple(map(words.plain, verdict.not_tested))
    if len(names) <= MAX_UNTESTED:
        return names
    num_left = len(names) - SHOWN_UNTESTED
    more = f"and {num_left} more, listed under “Not tested and residual risk”"
    return (*names[:SHOWN_UNTESTED], more)


def _where(dossier: Dossier) -> str:
    if dossier.verdict:
        place = words.place(dossier.verdict.where)
        if place:
            return place
    suspect = suspect_step(dossier)
    if suspect is None:
        return "–"
    return f"step {suspect}"


def _happened(dossier: Dossier) -> str:
    anchors = dossier.anchors
    if anchors is None:
        return "Nothing has been frozen yet, so no step is suspected."
    reason = words.first_sentence(
        words.without_step(anchors.reason, anchors.suspect), after_colon=anchors.suspect is not None
    )
    reason = reason or "no reason was recorded."
    if anchors.suspect is None:
        num_points = words.count(len(dossier.steps), "recorded point")
        return f"No step is suspect among {num_points}. {reason}"
    onset = ""
    if anchors.onset not in (None, anchors.suspect):
        onset = f", onset at step {anchors.onset}"
    return f"Step {anchors.suspect} is suspect{onset}: {reason}"


def _means(verdict: Verdict | None) -> str:
    if verdict is None:
        return "What it means is open: the evidence has not been weighed."
    return (
        words.first_sentence(verdict.explanation)
        or "The verdict was recorded without an explanation."
    )


def _besides(dossier: Dossier) -> str:
    """What the verdict does not speak of: findings against the run first, then the context."""
    named = dossier.verdict.beside if dossier.verdict else ()
    against, context = [], []
    for finding in dossier.findings:
        text = f"{words.plain(finding.name)}: {words.plain(finding.summary)}"
        if finding.name in named:
            against.append(text)
        elif not finding.judged and finding.outcome in ("differs", "nonfinite"):
            context.append(text)
    return "; ".join((*against, *context))


def _basis(dossier: Dossier) -> str:
    verdict, anchors = dossier.verdict, dossier.anchors
    start = "No known-good generation is selected"
    if anchors and anchors.known_good:
        start = f"Known good is {words.plain(anchors.known_good)}"
    if verdict:
        executed = verdict.steps_executed
        untested = f"{words.count(len(verdict.not_tested), 'item')} left untested"
    else:
        executed = sum(trial.num_steps_executed for trial in dossier.trials)
        untested = "every cause still untested"
    num_findings = words.count(len(dossier.findings), "finding")
    num_steps = words.count(executed, "executed step")
    return f"{start}; this rests on {num_findings} and {num_steps}, with {untested}."
