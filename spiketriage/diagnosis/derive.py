"""Derive the setting of the experiments from the evidence and the anchors.

It chooses steps, batches and states; it never opens a file, and never runs a trial.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from spiketriage.diagnosis.anchors import refusal
from spiketriage.diagnosis.band import MIN_THRESHOLD, distance, make_band, make_threshold
from spiketriage.diagnosis.compare import Chain
from spiketriage.diagnosis.setting import STEPS_AFTER, Setting
from spiketriage.diagnosis.view import View
from spiketriage.digests import of_mapping
from spiketriage.errors import RefusedError
from spiketriage.nouns.checkpoint import GenerationFacts
from spiketriage.nouns.incident import Anchors
from spiketriage.nouns.telemetry import LoadRecord, StepRecord

NUM_CLEAN = 3  # three batches give a median that one odd batch cannot move
CLEAN_HISTORY_STEPS = 24  # clean batches are recent, so that the state still knows such losses
AUDIT_STEPS = 18  # replayed without any suspicion, from the last restart on


def make_setting(view: View, anchors: Anchors, *, alarmed: bool) -> Setting:
    """The setting that `anchors` and the evidence give.

    Raises:
        RefusedError: there is no known-good generation, or no step to look at.
    """
    telemetry = view.telemetry
    if anchors.onset is None:
        anchors = audit_anchors(view, anchors)
    known_good = _require_known_good(view, anchors)
    good_step = generation_step(view, known_good)
    first_bad, suspect = _steps(anchors, good_step, max(telemetry.steps))
    if suspect <= good_step:
        raise RefusedError(f"the suspect step {suspect} does not lie after {known_good}")
    rank = telemetry.ranks[0]
    history = [record for record in telemetry.lineage(rank) if record.step < first_bad]
    oldest_step, older_step = good_step, None
    if anchors.older_good is not None:
        oldest_step = older_step = generation_step(view, anchors.older_good)
    band = make_band(history, oldest_step)
    later_good, later_step = _later(view, max(suspect, first_bad) + STEPS_AFTER)
    shown = telemetry.at(rank, suspect)
    production = view.history()
    return Setting(
        anchors=anchors,
        alarmed=alarmed,
        # Batch experiments are read off loss and gradient norm: they mean nothing where production
        # shows neither.
        spiked=alarmed and (shown is None or distance(shown, band) > MIN_THRESHOLD),
        suspect=suspect,
        first_bad=first_bad,
        known_good=known_good,
        known_good_step=good_step,
        older_good=anchors.older_good,
        older_good_step=older_step,
        production=production,
        loads=_loads(view, known_good, good_step),
        later_good=later_good,
        later_good_step=later_step,
        clean=_clean_steps(history),
        ids=_ids(production),
        band=band,
        threshold=make_threshold(shown, band),
        run_key=_run_key(view, anchors, suspect),
        reference_code=_reference_code(view, good_step, suspect),
        unreplayable=_unreplayable(view, suspect),
    )


def audit_anchors(view: View, anchors: Anchors) -> Anchors:
    """Anchors without any suspicion.

    Known good is the sound generation of the last restart, or the newest one with steps after it.
    """
    last = max(view.telemetry.steps, default=0)
    restarts = {load.generation: load.attempt for load in view.telemetry.loads}
    sound: list[tuple[int, GenerationFacts]] = []
    for facts in view.generations:
        if facts.step is not None and facts.step < last and not refusal(facts, None):
            sound.append((facts.step, facts))
    if not sound:
        return replace(anchors, known_good=None, older_good=None)
    step, chosen = max(sound, key=lambda pair: (restarts.get(pair[1].name, -1), pair[0]))
    older = [facts.name for other, facts in sound if other < step]
    return replace(anchors, known_good=chosen.name, older_good=older[-1] if older else None)


def generation_step(view: View, name: str) -> int:
    """The step of a generation.

    Raises:
        RefusedError: the run holds no such generation, or its step is unknown.
    """
    for facts in view.generations:
        if facts.name == name and facts.step is not None:
            return facts.step
    raise RefusedError(
        f"generation {name} is not among the run's generations",
        hint=f"spiketriage freeze {view.settings.run}",
    )


def _require_known_good(view: View, anchors: Anchors) -> str:
    hint = f"spiketriage status {view.settings.run}"
    if not view.telemetry.steps:
        raise RefusedError("no step is recorded: there is nothing to replay or to weigh", hint=hint)
    if anchors.known_good is None:
        raise RefusedError("no known-good generation: nothing can be replayed", hint=hint)
    return anchors.known_good


def _steps(anchors: Anchors, good_step: int, last_step: int) -> tuple[int, int]:
    """The first bad step and the suspect one; an audit takes a few steps after the generation."""
    if anchors.onset is not None:
        first_bad = anchors.onset
    else:
        first_bad = min(good_step + AUDIT_STEPS, last_step)
    if anchors.suspect is not None:
        return first_bad, anchors.suspect
    return first_bad, first_bad


def _loads(view: View, generation: str, step: int) -> tuple[LoadRecord, ...]:
    """The loads of the attempts that went on from this generation, if any did."""
    attempts: set[int] = set()
    for rank in view.telemetry.ranks:
        record = view.telemetry.at(rank, step + 1)
        if record is not None:
            attempts.add(record.attempt)
    loads: list[LoadRecord] = []
    for load in view.telemetry.loads:
        if (load.generation, load.step) == (generation, step) and load.attempt in attempts:
            loads.append(load)
    return tuple(loads)


def _unreplayable(view: View, suspect: int) -> str:
    settings = view.settings
    if not settings.harness:
        return "the run names no harness, so none of its steps can be executed"
    if view.telemetry.identity(suspect) is None and not settings.python_path:
        return "neither telemetry nor settings say which code the run was made by"
    return ""


def _later(view: View, after: int) -> tuple[str | None, int]:
    """The first complete generation after a step that production continued from, and its step."""
    recorded = set(view.telemetry.steps)
    for facts in view.generations:
        if not facts.complete or facts.step is None:
            continue
        if facts.step > after and facts.step + 1 in recorded:
            return facts.name, facts.step
    return None, 0


def _ids(production: Chain) -> dict[int, dict[str, Any]]:
    ids: dict[int, dict[str, Any]] = {}
    for step, ranks in production.items():
        ids[step] = {str(rank): record.ids for rank, record in ranks.items()}
    return ids


def _clean_steps(history: Sequence[StepRecord]) -> tuple[int, ...]:
    """The most ordinary recent steps: those whose loss lies nearest the median of the last ones."""
    losses: dict[int, float] = {}
    for record in history[-CLEAN_HISTORY_STEPS:]:
        loss = record.metrics.get("loss/mean", math.nan)
        if math.isfinite(loss):
            losses[record.step] = loss
    if not losses:
        return ()
    centre = float(np.median(list(losses.values())))
    nearest = sorted(losses, key=lambda step: abs(losses[step] - centre))
    return tuple(sorted(nearest[:NUM_CLEAN]))


def _run_key(view: View, anchors: Anchors, suspect: int) -> str:
    """A digest of everything beside the question that an answer depends on."""
    identity = view.telemetry.identity(suspect)
    parts = {"code": "", "config": ""}
    if identity is not None:
        parts = {"code": identity.code_digest, "config": identity.config_digest}
    for facts in view.generations:
        if facts.name in (anchors.known_good, anchors.older_good):
            parts[facts.name] = str(facts.manifest.fields if facts.manifest else "")
    return of_mapping(parts)


def _reference_code(view: View, good_step: int, suspect: int) -> str | None:
    """The newest code, other than the deployed one, that made a generation up to the known good."""
    identity = view.telemetry.identity(suspect)
    if identity is None:
        return None
    for manifest in reversed(view.manifests()):
        if manifest.step <= good_step and manifest.code_digest != identity.code_digest:
            if (view.settings.run / manifest.code_path).is_dir():
                return manifest.code_path
            return None
    return None
