"""What replay, branch and bisect work on: one incident with its view, setting and site.

It opens and never writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from spiketriage.diagnosis.causes import CAUSES
from spiketriage.diagnosis.experiments import EXPERIMENTS
from spiketriage.diagnosis.judge import Case, make_case
from spiketriage.diagnosis.launch import Answer, Site
from spiketriage.diagnosis.plan import REPLAY, Proposal, possible, propose
from spiketriage.diagnosis.setting import Setting, make_setting, make_site
from spiketriage.diagnosis.view import View
from spiketriage.errors import RefusedError
from spiketriage.evidence.frozen import load_view
from spiketriage.incident import store
from spiketriage.incident.next_step import command
from spiketriage.incident.store import Incident
from spiketriage.nouns.incident import Dossier, TrialRow
from spiketriage.readers.settings import read_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """Run folder and options as the person typed them."""

    run_folder: Path
    incidents: Path | None
    incident: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One incident, ready for experiments."""

    incident: Incident
    dossier: Dossier
    view: View
    setting: Setting
    site: Site
    typed: Typed

    def command(self, step: str, *options: str) -> str:
        """The command line of another step on this incident, with the options as they were typed."""
        return command(
            step, self.typed.run_folder, self.typed.incidents, self.typed.incident, *options
        )

    def case(self) -> Case:
        """What the judge weighs now."""
        executed = sum(trial.num_steps_executed for trial in self.dossier.trials)
        if self.setting.spiked:
            spike = self.setting.suspect
        else:
            spike = None
        blank = make_case(
            self.dossier.findings,
            spike_step=spike,
            possible=(),
            steps_executed=executed,
            alarmed=self.setting.alarmed,
        )
        return replace(blank, possible=possible(EXPERIMENTS, self.setting, blank))

    def proposal(self) -> Proposal | None:
        """What should be tried next, if anything."""
        return propose(CAUSES, EXPERIMENTS, self.setting, self.case())


def open_bench(run_folder: Path, incidents: Path | None, incident: str | None) -> Bench:
    """The bench of an incident.

    Raises:
        RefusedError: there is no incident, nothing was frozen, or there is no known-good
        generation.
    """
    found = store.find(run_folder, incidents=incidents, wanted=incident)
    dossier = found.dossier()
    if dossier.anchors is None:
        raise RefusedError(
            f"{found.id}: nothing is frozen", hint=f"spiketriage freeze {run_folder}"
        )
    view = load_view(found, read_settings(run_folder))
    setting = make_setting(view, dossier.anchors, spiked=dossier.spike.suspect is not None)
    site = make_site(view, setting, found.folder / "trials")
    return Bench(
        incident=found,
        dossier=dossier,
        view=view,
        setting=setting,
        site=site,
        typed=Typed(run_folder=run_folder, incidents=incidents, incident=incident),
    )


def require_replayable(bench: Bench) -> None:
    """Refuse to execute steps of a run that cannot be.

    Raises:
        RefusedError: the run has no harness, or nothing says which code made it.
    """
    if bench.setting.unreplayable:
        raise RefusedError(
            f"{bench.setting.unreplayable}: see `Your own trainer` in the README for the "
            "ten methods that it takes",
            hint=bench.command("bisect"),
        )


def new_rows(answers: Sequence[Answer]) -> list[TrialRow]:
    """Rows for the incident; a trial that was answered from the cache keeps the row it has."""
    return [answer.row for answer in answers if not answer.cached]


def next_command(proposal: Proposal | None, bench: Bench) -> str:
    """The command that runs a proposal; without one, the report."""
    if proposal is None:
        return bench.command("report")
    if proposal.experiments == (REPLAY,):
        return bench.command("replay")
    return bench.command(
        "branch", *(part for name in proposal.experiments for part in ("--experiment", name))
    )
