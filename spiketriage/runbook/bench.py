"""What replay and branch work on: the outlook of an incident, with its evidence at hand.

It opens evidence and never changes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spiketriage.diagnosis import trial_files, trust
from spiketriage.diagnosis.answer import Answer
from spiketriage.diagnosis.derive import make_setting
from spiketriage.diagnosis.experiments import EXPERIMENTS
from spiketriage.diagnosis.launch import execute
from spiketriage.diagnosis.plan import Plan, make_plan, plan_of_checks
from spiketriage.diagnosis.setting import Setting
from spiketriage.diagnosis.site import Site, make_site
from spiketriage.diagnosis.view import View
from spiketriage.errors import RefusedError
from spiketriage.evidence.frozen import load_view
from spiketriage.incident.session import Session
from spiketriage.incident.store import Incident
from spiketriage.nouns.incident import Dossier, RunSettings, TrialRow
from spiketriage.readers.settings import read_settings
from spiketriage.runbook.outlook import (
    Outlook,
    Typed,
    basis_of,
    find_frozen,
    is_alarmed,
    keep_plan,
    recorded_plan,
)
from spiketriage.wire.trial import Trial

TRIALS = "trials"  # below the incident's folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench(Outlook):
    """One incident, ready for experiments."""

    setting: Setting
    site: Site
    settings: RunSettings


def open_bench(typed: Typed) -> Bench:
    """The bench of an incident.

    Raises:
        RefusedError: there is no incident, nothing was frozen, or there is no known-good
        generation.
    """
    incident, dossier = find_frozen(typed)
    settings = read_settings(typed.run_folder)
    view = load_view(incident, settings)
    setting, plan = _derived(view, dossier)
    return Bench(
        incident=incident,
        dossier=dossier,
        plan=plan,
        is_recorded=recorded_plan(dossier, typed.run_folder) == plan,
        typed=typed,
        setting=setting,
        site=make_site(view, setting, incident.folder / TRIALS, _recorded(dossier)),
        settings=settings,
    )


def open_outlook(typed: Typed) -> Outlook:
    """The outlook of an incident from its evidence, also where no step can be executed.

    Raises:
        RefusedError: there is no incident, nothing was frozen, or no step is on record.
    """
    incident, dossier = find_frozen(typed)
    plan = _plan(load_view(incident, read_settings(typed.run_folder)), dossier)
    is_recorded = recorded_plan(dossier, typed.run_folder) == plan
    return Outlook(
        incident=incident, dossier=dossier, plan=plan, is_recorded=is_recorded, typed=typed
    )


def record_plan(session: Session, incident: Incident, view: View) -> None:
    """Write down what can be tried, on what the session has added so far.

    Where nothing can be derived nothing is written: whoever asks will hear why.
    """
    session.commit()
    try:
        plan = _plan(view, incident.dossier())
    except RefusedError:
        return
    keep_plan(session, plan)


def require_replayable(bench: Bench) -> None:
    """Refuse to execute steps of a run that cannot be.

    Raises:
        RefusedError: the run has no harness, or nothing says which code made it.
    """
    if bench.setting.unreplayable:
        raise RefusedError(
            f"{bench.setting.unreplayable}: see docs/own-trainer.md for the "
            "ten methods that it takes",
            hint=bench.command("bisect"),
        )


def ask(session: Session, bench: Bench, trials: Sequence[Trial]) -> dict[str, Answer]:
    """Execute what was not executed before, and record every file of the trials that answered.

    Raises:
        NotTrustedError: code of the run would have to be imported that this user does not trust.
        TrialError: a launch failed.
    """
    site = bench.site
    keys: list[str] = []
    codes: set[str] = set()
    for trial in trials:
        if not trial_files.is_recorded(site.trials, trial.key, site.recorded):
            keys.append(trial.key)
            codes.add(trial.factors.code)
    for code in sorted(codes):
        _require_trust(session, bench, code)
    session.begin_writing(f"{TRIALS}/{key}" for key in keys)
    answers = execute(site, trials)
    for key in keys:
        for path, digest in trial_files.digests(site.trials, key).items():
            session.wrote({f"{TRIALS}/{path}": digest})
    return answers


def _require_trust(session: Session, bench: Bench, code: str) -> None:
    """Record since when the code is trusted that is about to be imported.

    Raises:
        NotTrustedError: it is not.
    """
    session.trusted = trust.require(
        trust.code_of(bench.settings),
        bench.site.codes[code],
        is_granted=bench.typed.trust,
        command=session.command,
    )


def _recorded(dossier: Dossier) -> dict[str, str]:
    """SHA-256 of every file that a command recorded, by path below the trials folder."""
    recorded = {}
    for row in dossier.files:
        if row.sha256 and row.path.startswith(f"{TRIALS}/"):
            recorded[row.path.removeprefix(f"{TRIALS}/")] = row.sha256
    return recorded


def new_rows(answers: Iterable[Answer]) -> list[TrialRow]:
    """Rows for the incident; a trial that was answered from the cache keeps the row it has."""
    return [answer.row for answer in answers if not answer.cached]


def _plan(view: View, dossier: Dossier) -> Plan:
    """What can be tried; nothing where there is no state to begin from, and the checks speak alone.

    Raises:
        RefusedError: no step is on record that a verdict could be about.
    """
    try:
        _, plan = _derived(view, dossier)
    except RefusedError as error:
        assert dossier.anchors is not None, "whoever asks has found the incident frozen"
        suspect = dossier.anchors.suspect or max(view.telemetry.steps, default=None)
        if suspect is None:
            raise
        return plan_of_checks(
            EXPERIMENTS,
            basis=basis_of(dossier, view.settings.run),
            suspect=suspect,
            alarmed=is_alarmed(dossier),
            why=error.message,
        )
    return plan


def _derived(view: View, dossier: Dossier) -> tuple[Setting, Plan]:
    assert dossier.anchors is not None, "whoever asks has found the incident frozen"
    setting = make_setting(view, dossier.anchors, alarmed=is_alarmed(dossier))
    basis = basis_of(dossier, view.settings.run)
    return setting, make_plan(EXPERIMENTS, setting, basis)
