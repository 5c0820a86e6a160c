"""The setting of an incident's experiments.

Anchors, batches, clean steps, and the trials that controls share.

It states questions and never runs one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from spiketriage.diagnosis.anchors import refusal
from spiketriage.diagnosis.compare import Chain
from spiketriage.diagnosis.launch import Site
from spiketriage.diagnosis.view import View
from spiketriage.digests import of_mapping
from spiketriage.errors import RefusedError
from spiketriage.nouns.checkpoint import GenerationFacts
from spiketriage.nouns.incident import Anchors
from spiketriage.nouns.telemetry import Identity, StepRecord
from spiketriage.wire.trial import Factors, Trial

NUM_CLEAN = 3
MIN_HISTORY_STEPS, HISTORY_STEPS = 32, 64
STEPS_AFTER = 2
MIN_THRESHOLD, MAX_THRESHOLD = 2.5, 5.0  # robust scales
AUDIT_STEPS = 18  # replayed without any suspicion, from the last restart on


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """What production looked like before the incident.

    Centre and robust scale of loss and log gradient norm.
    """

    loss: float
    loss_scale: float
    log_norm: float
    log_norm_scale: float


def distance(record: StepRecord, band: Band) -> float:
    """How far a step lies outside the band, in robust scales of loss or gradient norm.

    Infinite when nonfinite.
    """
    loss, norm = (
        record.metrics.get("loss/mean", math.nan),
        record.metrics.get("grad/norm", math.nan),
    )
    if record.nonfinite or not (math.isfinite(loss) and math.isfinite(norm)):
        return math.inf
    by_loss = abs(loss - band.loss) / band.loss_scale
    return max(by_loss, abs(math.log(max(norm, 1e-30)) - band.log_norm) / band.log_norm_scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What every experiment of one incident starts from.

    `alarmed` says that an alarm or a person pointed at the suspect step, `spiked` that its loss or
    gradient norm is anomalous; `suspect` is the step of the batch tests; `first_bad` the earliest
    anchor, which the replay must cover; `production` is the recorded chain; `later_good` a complete
    generation after the window, to be replayed for a step; `ids` are production's batch names by
    step and rank; `clean` are steps whose batches looked ordinary; `unreplayable` is why no step of
    this run can be executed, empty where one can; `threshold` is how many scales of `band` count as
    anomalous: half of what production itself showed.
    """

    anchors: Anchors
    alarmed: bool
    spiked: bool
    suspect: int
    first_bad: int
    known_good: str
    known_good_step: int
    older_good: str | None
    older_good_step: int | None
    clean: tuple[int, ...]
    ids: Mapping[int, Mapping[str, Any]]
    band: Band
    threshold: float
    production: Chain
    later_good: str | None
    later_good_step: int
    run_key: str
    reference_code: str | None
    unreplayable: str = ""

    def replay(self, *, last: int | None = None, repeat: int = 0, **factors: str) -> Trial:
        """A replay from the known-good generation over the suspect window."""
        first = self.known_good_step + 1
        return Trial(
            kind="replay",
            purpose="replay",
            factors=Factors(state=f"{self.known_good}@{self.known_good_step}", **factors),
            first_step=first,
            last_step=last or self.last_step,
            repeat=repeat,
            run_key=self.run_key,
        )

    def later_replay(self) -> Trial | None:
        """One step from the first complete generation after the window."""
        if self.later_good is None:
            return None
        return Trial(
            kind="replay",
            purpose="replay",
            factors=Factors(state=f"{self.later_good}@{self.later_good_step}"),
            first_step=self.later_good_step + 1,
            last_step=self.later_good_step + 1,
            run_key=self.run_key,
        )

    def probe(self, *, batch: int, older: bool = False, **factors: str) -> Trial:
        """One pass of the batch of step `batch` on the state before the suspect step, or on the older good state."""
        if older:
            state = f"{self.older_good}@{self.older_good_step}"
        else:
            state = f"{self.known_good}@{self.suspect - 1}"
        return Trial(
            kind="probe",
            purpose="probe",
            factors=Factors(state=state, batch=f"step {batch}", **factors),
            first_step=batch,
            last_step=batch,
            ids={rank: {str(batch): ids} for rank, ids in self.ids[batch].items()},
            run_key=self.run_key,
        )

    @property
    def last_step(self) -> int:
        """Last step of the replay window; never beyond what production recorded."""
        return min(max(self.suspect, self.first_bad) + STEPS_AFTER, max(self.ids))


def make_setting(view: View, anchors: Anchors, *, spiked: bool) -> Setting:
    """The setting that `anchors` and the evidence give.

    Raises:
        RefusedError: there is no known-good generation, or no step to look at.
    """
    telemetry = view.telemetry
    if anchors.onset is None:
        anchors = audit_anchors(view, anchors)
    if not telemetry.steps:
        hint = f"spiketriage status {view.settings.run}"
        raise RefusedError("no step is recorded: there is nothing to replay or to weigh", hint=hint)
    if anchors.known_good is None:
        raise RefusedError(
            "no known-good generation: nothing can be replayed",
            hint=f"spiketriage status {view.settings.run}",
        )
    good = int(view_step(view, anchors.known_good))
    last = max(telemetry.steps, default=good)
    if anchors.onset is not None:
        first_bad = anchors.onset
    else:
        first_bad = min(good + AUDIT_STEPS, last)
    suspect = anchors.suspect if anchors.suspect is not None else first_bad
    if suspect <= good:
        raise RefusedError(f"the suspect step {suspect} does not lie after {anchors.known_good}")
    band_history = [
        record for record in telemetry.lineage(telemetry.ranks[0]) if record.step < first_bad
    ]
    older = None if anchors.older_good is None else int(view_step(view, anchors.older_good))
    band = _band(band_history, good if older is None else older)
    later = _later(view, max(suspect, first_bad) + STEPS_AFTER)
    shown = telemetry.at(telemetry.ranks[0], suspect)
    return Setting(
        anchors=anchors,
        alarmed=spiked,
        # Batch experiments are read off loss and gradient norm: they mean nothing where production
        # shows neither.
        spiked=spiked and (shown is None or distance(shown, band) > MIN_THRESHOLD),
        suspect=suspect,
        first_bad=first_bad,
        known_good=anchors.known_good,
        known_good_step=good,
        older_good=anchors.older_good,
        older_good_step=older,
        production=view.history(),
        later_good=later.name if later is not None else None,
        later_good_step=(later.step or 0) if later is not None else 0,
        clean=_clean_steps(band_history),
        ids=_ids(view),
        band=band,
        threshold=_threshold(shown, band),
        run_key=_run_key(view, anchors, suspect),
        reference_code=_reference_code(view, anchors, suspect),
        unreplayable=_unreplayable(view, suspect),
    )


def _unreplayable(view: View, suspect: int) -> str:
    settings = view.settings
    if not settings.harness:
        return "the run names no harness, so none of its steps can be executed"
    if view.telemetry.identity(suspect) is None and not settings.python_path:
        return "neither telemetry nor settings say which code the run was made by"
    return ""


def audit_anchors(view: View, anchors: Anchors) -> Anchors:
    """Anchors without any suspicion.

    The sound generation of the last restart, or the newest with steps after it.
    """
    last = max(view.telemetry.steps, default=0)
    restarts = {load.generation: load.attempt for load in view.telemetry.loads}
    sound = [
        facts
        for facts in view.generations
        if facts.step is not None and facts.step < last and not refusal(facts, None)
    ]
    chosen = max(sound, key=lambda facts: (restarts.get(facts.name, -1), facts.step), default=None)
    older = [
        facts.name
        for facts in sound
        if chosen is not None and (facts.step or 0) < (chosen.step or 0)
    ]
    return replace(
        anchors, known_good=chosen.name if chosen else None, older_good=older[-1] if older else None
    )


def _later(view: View, after: int) -> GenerationFacts | None:
    """The first complete generation after a step that production continued from."""
    steps = set(view.telemetry.steps)
    return next(
        (
            g
            for g in view.generations
            if g.complete and g.step is not None and g.step > after and g.step + 1 in steps
        ),
        None,
    )


def make_site(view: View, setting: Setting, trials: Path) -> Site:
    """Where this incident's trials run.

    `deployed` is the code that production ran at the suspect step.
    """
    settings = view.settings
    identity = view.telemetry.identity(setting.suspect)
    if identity:
        deployed = _code_parent(view, identity.code_path)
    else:
        deployed = Path(next(iter(settings.python_path), str(settings.run)))
    codes = {"deployed": deployed}
    if setting.reference_code is not None:
        codes["reference"] = _code_parent(view, setting.reference_code)
    return Site(
        run=settings.run,
        trials=trials,
        checkpoints=_checkpoints(view, setting),
        digests={
            manifest.generation: {entry.path: entry.digest for entry in manifest.files}
            for manifest in view.manifests()
        },
        harness=settings.harness,
        codes=codes,
        num_processes=identity.world_size if identity else settings.num_processes,
        num_threads=identity.num_threads if identity else 1,
    )


def _checkpoints(view: View, setting: Setting) -> Path:
    """The folder that still holds both good generations.

    The run's, or the incident's pins once the run rotated.
    """
    wanted = (setting.known_good, setting.older_good)
    parents = {facts.path.parent for facts in view.generations if facts.name in wanted}
    elsewhere = parents - {view.settings.checkpoints}
    if elsewhere:
        return elsewhere.pop()
    return view.settings.checkpoints


def view_step(view: View, generation: str) -> int:
    """The step of a generation by name."""
    for facts in view.generations:
        if facts.name == generation and facts.step is not None:
            return facts.step
    raise RefusedError(
        f"generation {generation} is not among the run's generations",
        hint=f"spiketriage freeze {view.settings.run}",
    )


def _code_parent(view: View, code_path: str) -> Path:
    return (view.settings.run / code_path).parent


def _ids(view: View) -> dict[int, dict[str, Any]]:
    result: dict[int, dict[str, Any]] = {}
    for step, ranks in view.history().items():
        result[step] = {str(rank): record.ids for rank, record in ranks.items()}
    return result


def _clean_steps(history: list[StepRecord]) -> tuple[int, ...]:
    """The most ordinary recent steps: those whose loss lies nearest the median of the last ones."""
    recent = [
        record
        for record in history[-24:]
        if math.isfinite(record.metrics.get("loss/mean", math.nan))
    ]
    if not recent:
        return ()
    centre = float(np.median([record.metrics["loss/mean"] for record in recent]))
    nearest = sorted(recent, key=lambda record: abs(record.metrics["loss/mean"] - centre))
    return tuple(sorted(record.step for record in nearest[:NUM_CLEAN]))


def _band(history: list[StepRecord], oldest_step: int) -> Band:
    """The steps since the oldest state under test.

    A young run's loss falls so fast that more would hide a spike.
    """
    recent = sum(1 for record in history if record.step > oldest_step)
    window = history[-min(HISTORY_STEPS, max(MIN_HISTORY_STEPS, recent)) :]
    losses = [record.metrics.get("loss/mean", math.nan) for record in window]
    norms = [record.metrics.get("grad/norm", math.nan) for record in window]
    loss, loss_scale = _robust(np.array(losses))
    log_norm, log_norm_scale = _robust(np.log(np.maximum(np.array(norms), 1e-30)))
    return Band(loss=loss, loss_scale=loss_scale, log_norm=log_norm, log_norm_scale=log_norm_scale)


def _threshold(suspect: StepRecord | None, band: Band) -> float:
    if suspect is None:
        shown = math.inf
    else:
        shown = distance(suspect, band)
    return min(MAX_THRESHOLD, max(MIN_THRESHOLD, shown / 2))


def _robust(values: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[float, float]:
    """Median and scale, as docs/design-reasons.md#scales-from-a-percentile has them."""
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        return math.nan, math.nan
    centre = float(np.median(finite))
    return centre, max(float(np.percentile(np.abs(finite - centre), 95)) / 1.96, 0.01)


def _run_key(view: View, anchors: Anchors, suspect: int) -> str:
    identity: Identity | None = view.telemetry.identity(suspect)
    parts = {}
    for facts in view.generations:
        for name in (facts.name,):
            if name in (anchors.known_good, anchors.older_good):
                parts[name] = str(facts.manifest.fields if facts.manifest else "")
    parts["code"] = identity.code_digest if identity else ""
    parts["config"] = identity.config_digest if identity else ""
    return of_mapping(parts)


def _reference_code(view: View, anchors: Anchors, suspect: int) -> str | None:
    """The newest code, other than the deployed one, that made a generation no younger than the known good one."""
    identity = view.telemetry.identity(suspect)
    good = view_step(view, anchors.known_good or "")
    for manifest in reversed(view.manifests()):
        if (
            manifest.step <= good
            and identity is not None
            and manifest.code_digest != identity.code_digest
        ):
            if (view.settings.run / manifest.code_path).is_dir():
                return manifest.code_path
            return None
    return None
