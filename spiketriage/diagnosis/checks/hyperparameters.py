"""Check: betas, eps, weight decay and clip, as applied and as stated, are the manifest's.

The manifest is that of the generation which the attempt continues. It never looks at the learning
rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spiketriage.diagnosis.findings import agrees, untestable
from spiketriage.diagnosis.role import TESTS_CAUSES, Emission
from spiketriage.diagnosis.view import View
from spiketriage.nouns.checkpoint import Manifest
from spiketriage.nouns.incident import Finding, Where
from spiketriage.nouns.listing import counted

NAME = "hyperparameters"
EMITS = {NAME: Emission(role=TESTS_CAUSES, dates_onset=True)}
# Metric as applied → the names under which trainers state it.
NAMES: dict[str, tuple[str, ...]] = {
    "beta1": ("beta1", "adam_beta1"),
    "beta2": ("beta2", "adam_beta2"),
    "eps": ("eps", "adam_eps", "epsilon"),
    "weight_decay": ("weight_decay",),
    "clip/threshold": ("clip/threshold", "clip_threshold", "clip", "max_grad_norm", "clip_norm"),
}
RELATIVE_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wrong:
    step: int
    rank: int
    field: str
    expected: object
    seen: object


def run(view: View) -> tuple[Finding, ...]:
    """One finding that names every hyper-parameter that is not the manifest's."""
    references = {attempt: view.reference(attempt) for attempt in view.telemetry.attempts}
    stated = [manifest for manifest in references.values() if manifest and manifest.hparams]
    if not stated:
        return (untestable(NAME, "no manifest states hyper-parameters"),)
    wrong = _wrong_as_applied(view, references) + _wrong_as_stated(view, references)
    if wrong:
        return (_differs(wrong),)
    return (
        agrees(
            NAME,
            (
                f"hyper-parameters are those of {stated[0].generation} at every step, as "
                "applied and as stated"
            ),
        ),
    )


def _wrong_as_applied(view: View, references: Mapping[int, Manifest | None]) -> list[_Wrong]:
    stated = {}
    for attempt, manifest in references.items():
        if manifest:
            stated[attempt] = _by_metric(manifest.hparams)
    result: list[_Wrong] = []
    for step, records in view.history().items():
        for rank, record in sorted(records.items()):
            for name, expected in stated.get(record.attempt, {}).items():
                if name in record.metrics and not _equal(record.metrics[name], expected):
                    result.append(
                        _Wrong(
                            step=step,
                            rank=rank,
                            field=name,
                            expected=expected,
                            seen=record.metrics[name],
                        )
                    )
    return result


def _wrong_as_stated(view: View, references: Mapping[int, Manifest | None]) -> list[_Wrong]:
    wrong: list[_Wrong] = []
    for item in view.identities():
        manifest, seen = references.get(item.attempt), item.identity.hparams
        if manifest is None or item.first_step is None:
            continue
        common = [name for name in manifest.hparams if name in seen]
        for name in common:
            if not _equal(seen[name], manifest.hparams[name]):
                wrong.append(
                    _Wrong(
                        step=item.first_step,
                        rank=item.rank,
                        field=name,
                        expected=manifest.hparams[name],
                        seen=seen[name],
                    )
                )
    return wrong


def _by_metric(hparams: Mapping[str, Any]) -> dict[str, object]:
    """The hyper-parameters that are also recorded as applied, under their metric names."""
    spread = dict(hparams)
    betas = hparams.get("betas")
    if isinstance(betas, list | tuple) and len(betas) == 2:
        spread = {"beta1": betas[0], "beta2": betas[1], **spread}
    by_metric: dict[str, object] = {}
    for metric, names in NAMES.items():
        stated = [spread[name] for name in names if name in spread]
        if stated and isinstance(stated[0], int | float):
            by_metric[metric] = stated[0]
    return by_metric


def _equal(seen: object, expected: object) -> bool:
    if isinstance(seen, int | float) and isinstance(expected, int | float):
        return seen == expected or math.isclose(seen, expected, rel_tol=RELATIVE_TOLERANCE)
    if isinstance(seen, list | tuple) and isinstance(expected, list | tuple):
        return len(seen) == len(expected) and all(
            _equal(a, b) for a, b in zip(seen, expected, strict=True)
        )
    return seen == expected


def _differs(wrong: list[_Wrong]) -> Finding:
    first_step = min(item.step for item in wrong)
    fields: dict[str, _Wrong] = {}
    for item in sorted(wrong, key=lambda item: item.step):
        fields.setdefault(item.field, item)
    ranks = {item.rank for item in wrong}
    named = ", ".join(
        f"{name} is {item.seen} instead of {item.expected}" for name, item in fields.items()
    )
    first = next(iter(fields.values()))
    return Finding(
        name=NAME,
        outcome="differs",
        summary=f"from step {first_step}: {named} "
        f"({counted(len({item.step for item in wrong}), 'step')})",
        where=Where(
            step=first_step,
            stage="clip_lr" if "clip" in first.field else "optimizer",
            key=first.field,
            rank=first.rank if len(ranks) == 1 else None,
        ),
        expected=", ".join(f"{name}={item.expected}" for name, item in fields.items()),
        seen=", ".join(f"{name}={item.seen}" for name, item in fields.items()),
        magnitude=float(len(fields)),
    )
