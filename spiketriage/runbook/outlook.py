"""What is known of an incident and what can still be tried, from the incident's own record.

It never reads evidence: which experiments are possible was written down by the step before.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path

from spiketriage import __version__
from spiketriage.diagnosis.causes import CAUSES
from spiketriage.diagnosis.experiments import EXPERIMENTS
from spiketriage.diagnosis.judge import Case, make_case
from spiketriage.diagnosis.plan import Plan, Proposal, possible, propose
from spiketriage.digests import of_bytes, of_mapping
from spiketriage.errors import RefusedError
from spiketriage.incident import store
from spiketriage.incident.next_step import command
from spiketriage.incident.session import Session
from spiketriage.incident.store import Incident
from spiketriage.nouns.incident import SETTINGS_NAME, Dossier

# What the steps after `check` add to an incident: no experiment becomes possible by it. Artifacts
# and steps of production are copied from evidence that is in the facts too.
ADDED_LATER = {
    "artifacts",
    "experiments",
    "files",
    "findings",
    "journal",
    "setting",
    "steps",
    "trials",
    "verdict",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """Run folder and options as the person typed them.

    `trust` says that the person lets the code of the run be executed.
    """

    run_folder: Path
    incidents: Path | None
    incident: str | None
    trust: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """One incident, what it holds, and the plan of what can be tried.

    `is_recorded` says that the incident holds this very plan.
    """

    incident: Incident
    dossier: Dossier
    plan: Plan
    is_recorded: bool
    typed: Typed

    def command(self, step: str, *options: str) -> str:
        """The command line of another step on this incident, with the options as typed."""
        typed = self.typed
        return command(step, typed.run_folder, typed.incidents, typed.incident, *options)

    def case(self) -> Case:
        """What the judge weighs now."""
        setting = self.plan.setting
        blank = make_case(
            self.dossier.findings,
            spike_step=setting.suspect if setting.spiked else None,
            possible=(),
            steps_executed=sum(trial.num_steps_executed for trial in self.dossier.trials),
            alarmed=setting.alarmed,
        )
        return replace(blank, possible=possible(EXPERIMENTS, self.plan, blank))

    def proposal(self) -> Proposal | None:
        """What should be tried next, if anything."""
        return propose(CAUSES, EXPERIMENTS, self.plan, self.case())

    def keep_plan(self, session: Session) -> None:
        """Record the plan, unless the incident holds it already."""
        if not self.is_recorded:
            keep_plan(session, self.plan)


def find_frozen(typed: Typed) -> tuple[Incident, Dossier]:
    """The incident that was asked for, and what it holds.

    Raises:
        RefusedError: there is no incident, or nothing was frozen in it.
    """
    incident = store.find(typed.run_folder, incidents=typed.incidents, wanted=typed.incident)
    dossier = incident.dossier()
    if dossier.anchors is None:
        raise RefusedError(
            f"{incident.id}: nothing is frozen", hint=f"spiketriage freeze {typed.run_folder}"
        )
    return incident, dossier


def recorded_outlook(typed: Typed) -> Outlook | None:
    """The outlook that an earlier step wrote down; None if none did, or not on what is known now.

    Raises:
        RefusedError: there is no incident, or nothing was frozen in it.
    """
    incident, dossier = find_frozen(typed)
    plan = recorded_plan(dossier, typed.run_folder)
    if plan is None:
        return None
    return Outlook(incident=incident, dossier=dossier, plan=plan, is_recorded=True, typed=typed)


def recorded_plan(dossier: Dossier, run_folder: Path) -> Plan | None:
    """The plan that the incident holds, if it stands on what is known now."""
    if dossier.setting is None or dossier.setting.basis != basis_of(dossier, run_folder):
        return None
    return Plan(setting=dossier.setting, experiments={row.name: row for row in dossier.experiments})


def keep_plan(session: Session, plan: Plan) -> None:
    """Record a plan, so that later steps need no evidence to know it."""
    session.setting(plan.setting)
    session.experiments(plan.experiments.values())


def is_alarmed(dossier: Dossier) -> bool:
    """Whether an alarm or a person pointed at a step, whatever the checks made of the anchors."""
    return dossier.spike.suspect is not None


def basis_of(dossier: Dossier, run_folder: Path) -> str:
    """A digest of all that a plan is derived from beside the frozen evidence, which never changes.

    Freeze, hash and check may change what the incident says of anchors and generations, and people
    may name a harness in the run's settings.
    """
    parts = {"version": __version__, "settings": _settings_digest(run_folder)}
    for field in fields(Dossier):
        if field.name not in ADDED_LATER:
            parts[field.name] = repr(getattr(dossier, field.name))
    return of_mapping(parts)


def _settings_digest(run_folder: Path) -> str:
    try:
        return of_bytes((run_folder / SETTINGS_NAME).read_bytes())
    except OSError:
        return ""
