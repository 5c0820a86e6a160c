"""What replay, branch and bisect work on: one incident with its view, setting and site.

It opens and never writes.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spiketriage.diagnosis.causes import CAUSES
from spiketriage.diagnosis.experiments import EXPERIMENTS
from spiketriage.diagnosis.judge import Case, make_case
from spiketriage.diagnosis.launch import Answer, Site
from spiketriage.diagnosis.plan import REPLAY, Proposal, possible, propose
from spiketriage.diagnosis.setting import Setting, make_setting, make_site
from spiketriage.diagnosis.view import View
from spiketriage.errors import RefusedError
from spiketriage.incident import store
from spiketriage.incident.store import Incident
from spiketriage.readers.settings import read_settings
from spiketriage.records import Dossier, TrialRow
from spiketriage.runbook.evidence import load_view
from spiketriage.runbook.spike import spike_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One incident, ready for experiments; `words` are run folder and options as they were typed."""

    incident: Incident
    dossier: Dossier
    view: View
    setting: Setting
    site: Site
    words: tuple[str, ...]

    def command(self, step: str) -> str:
        """The command line of another step on this incident, with the options as they were typed."""
        return shlex.join(["spiketriage", step, *self.words])

    def case(self) -> Case:
        """What the judge weighs now."""
        executed = sum(trial.num_steps_executed for trial in self.dossier.trials)
        spike = self.setting.suspect if self.setting.spiked else None
        blank = make_case(self.dossier.findings, spike_step=spike, possible=(), steps_executed=executed)
        options = possible(EXPERIMENTS, self.setting, blank)
        return make_case(self.dossier.findings, spike_step=spike, possible=options, steps_executed=executed)

    def proposal(self) -> Proposal | None:
        """What should be tried next, if anything."""
        return propose(CAUSES, EXPERIMENTS, self.setting, self.case())


def open_bench(run_folder: Path, incidents: Path | None, incident: str | None) -> Bench:
    """The bench of an incident.

    Raises:
        RefusedError: there is no incident, nothing was frozen, or there is no known-good generation.
    """
    found = store.find(run_folder, incidents=incidents, wanted=incident)
    dossier = found.dossier()
    if dossier.anchors is None:
        raise RefusedError(f"{found.id}: nothing is frozen", hint=f"spiketriage freeze {run_folder}")
    view = load_view(found, read_settings(run_folder))
    setting = make_setting(view, dossier.anchors, spiked=spike_of(dossier).suspect is not None)
    site = make_site(view, setting, found.folder / "trials")
    words = tuple(place(run_folder, incidents, incident))
    return Bench(incident=found, dossier=dossier, view=view, setting=setting, site=site, words=words)


def new_rows(answers: Sequence[Answer]) -> list[TrialRow]:
    """Rows for the incident; a trial that was answered from the cache keeps the row it has."""
    return [answer.row for answer in answers if not answer.cached]


def place(run_folder: Path, incidents: Path | None, incident: str | None) -> list[str]:
    """Run folder and options as they were typed, for the next command."""
    elsewhere = ["--incidents", str(incidents)] if incidents else []
    return [str(run_folder), *elsewhere, *(["--incident", incident] if incident else [])]


def next_command(proposal: Proposal | None, words: Sequence[str], otherwise: str) -> str:
    """The command that runs a proposal."""
    if proposal is None:
        return shlex.join(["spiketriage", otherwise, *words])
    if proposal.experiments == (REPLAY,):
        return shlex.join(["spiketriage", "replay", *words])
    options = [part for name in proposal.experiments for part in ("--experiment", name)]
    return shlex.join(["spiketriage", "branch", *words, *options])
