"""Check: what each rank held right after a load is what the manifest of the loaded generation says.

Tests of state belong on the just-loaded state: a step later the traces are gone. It never opens a
checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

from spiketriage.diagnosis.findings import agrees, ranks_text, untestable
from spiketriage.diagnosis.role import TESTS_CAUSES, Emission
from spiketriage.diagnosis.view import View
from spiketriage.nouns.checkpoint import Manifest
from spiketriage.nouns.incident import Finding, Where
from spiketriage.nouns.listing import counted
from spiketriage.nouns.telemetry import LoadRecord
from spiketriage.wire.chain import PLACEMENT, STATE_FIELDS

NAME = "restored"
EMITS = {f"{NAME}-{field}": Emission(role=TESTS_CAUSES, dates_onset=True) for field in STATE_FIELDS}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    load: LoadRecord
    manifest: Manifest
    expected: str
    seen: str

    @property
    def equal(self) -> bool:
        return self.expected == self.seen


def run(view: View) -> tuple[Finding, ...]:
    """One finding for each field of the state, from the parameters to the data cursor."""
    return tuple(_check_field(view, name) for name in STATE_FIELDS)


def _check_field(view: View, field: str) -> Finding:
    loads = sorted(view.telemetry.loads, key=lambda load: (load.attempt, load.step, load.rank))
    if not loads:
        return untestable(f"{NAME}-{field}", "no load is recorded: the run never restarted")
    compared: list[_Comparison] = []
    for load in loads:
        comparison = _compare(view, load, field)
        if comparison is not None:
            compared.append(comparison)
    if not compared:
        names = ", ".join(sorted({load.generation for load in loads}))
        why = (
            f"load and manifest of {names} do not both state a digest of {field} on the same "
            "placement of ranks"
        )
        return untestable(f"{NAME}-{field}", why)
    wrong = [item for item in compared if not item.equal]
    if wrong:
        return _differs(view, field, wrong)
    return agrees(
        f"{NAME}-{field}",
        f"after {counted(len(compared), 'load')} {field} is what the manifest says",
    )


def _compare(view: View, load: LoadRecord, field: str) -> _Comparison | None:
    manifest = view.manifest(load.generation)
    if manifest:
        saved = manifest.fields.get(f"rank-{load.rank}", {})
    else:
        saved = {}
    expected, seen = saved.get(field), load.fields.get(field)
    if saved.get(PLACEMENT) != load.fields.get(PLACEMENT):
        return None  # onto other ranks: each holds other pieces, and its own generators
    if manifest is None or not expected or not seen:
        return None
    return _Comparison(load=load, manifest=manifest, expected=expected, seen=seen)


def _differs(view: View, field: str, wrong: list[_Comparison]) -> Finding:
    first = wrong[0]
    ranks = [item.load.rank for item in wrong if item.load.attempt == first.load.attempt]
    tensors = _differing_tensors(first, field)
    if tensors:
        first_tensor = f", first in {tensors[0]} ({counted(len(tensors), 'tensor')})"
    else:
        first_tensor = ""
    origin = _origin(view, field, first)
    return Finding(
        name=f"{NAME}-{field}",
        outcome="differs",
        summary=f"{ranks_text(sorted(set(ranks)))} loaded {first.load.generation}, but {field} is "
        "not what "
        f"its manifest says{first_tensor}{f': it is that of {origin}' if origin else ''}",
        where=Where(step=first.load.step + 1, stage="restored", key=field, rank=first.load.rank),
        expected=f"{field} of {first.load.generation}: {first.expected}",
        seen=f"{f'{field} of {origin}: ' if origin else ''}{first.seen}",
        magnitude=float(len(tensors)) if tensors else None,
    )


def _differing_tensors(item: _Comparison, field: str) -> tuple[str, ...]:
    expected = item.manifest.tensors.get(f"rank-{item.load.rank}", {}).get(field, {})
    seen = item.load.tensors.get(field, {})
    if seen:
        return tuple(name for name in expected if seen.get(name) != expected[name])
    return ()


def _origin(view: View, field: str, item: _Comparison) -> str:
    """Where the foreign state belongs: the same rank of another generation, else another rank."""
    own = f"rank-{item.load.rank}"
    alike: list[str] = []
    others: list[str] = []
    for manifest in view.manifests():
        for rank, fields in manifest.fields.items():
            if fields.get(field) != item.seen:
                continue
            if rank == own:
                alike.append(manifest.generation)
            others.append(f"{rank.replace('-', ' ')} of {manifest.generation}")
    return next(iter(alike + others), "")
