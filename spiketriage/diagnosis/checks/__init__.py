"""Checks: one assertion a file, each from evidence alone, no step executed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

from spiketriage.diagnosis.checks import (
    code_identity,
    collectives,
    composition,
    consumed_content,
    consumed_counters,
    content_profile,
    continuity,
    declared_lr,
    fatal_event,
    finiteness,
    hyperparameters,
    ids,
    logged_lr,
    loss_bounds,
    lr_schedule,
    metric_consistency,
    rank_agreement,
    reduction,
    repeated_steps,
    replica_hashes,
    restored_state,
    run_identity,
    series_trust,
    stored_finiteness,
    stored_steps,
    stored_values,
    system_events,
)
from spiketriage.diagnosis.role import Emissions
from spiketriage.diagnosis.view import View
from spiketriage.nouns.incident import Finding


class Check(Protocol):
    """What a member must have; `run` returns findings and raises only for malformed evidence."""

    NAME: str
    EMITS: Emissions

    @property
    def run(self) -> Callable[[View], tuple[Finding, ...]]:
        """The assertion."""
        ...


CHECKS: tuple[Check, ...] = cast(
    "tuple[Check, ...]",
    (
        rank_agreement,
        reduction,
        continuity,
        finiteness,
        metric_consistency,
        lr_schedule,
        hyperparameters,
        code_identity,
        run_identity,
        restored_state,
        consumed_content,
        ids,
        composition,
        content_profile,
        stored_finiteness,
        stored_steps,
        stored_values,
        series_trust,
        consumed_counters,
        logged_lr,
        declared_lr,
        loss_bounds,
        repeated_steps,
        replica_hashes,
        system_events,
        fatal_event,
        collectives,
    ),
)
