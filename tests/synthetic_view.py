"""A healthy synthetic run in memory, made of the product's own records, into which a test plants one fault.

Two attempts (the second loads step 40), four replicated stages, one document a name; it never
touches a disk unless a test asks for shards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from spiketriage import digests
from spiketriage.diagnosis.view import View
from spiketriage.nouns.checkpoint import GenerationFacts, Manifest
from spiketriage.nouns.data import DataIndex, Document
from spiketriage.nouns.incident import Anchors, Finding, RunSettings
from spiketriage.nouns.telemetry import Identity, Link, LoadRecord, Segment, StepRecord
from spiketriage.readers.telemetry.run.lineage import Telemetry

TENSORS = ("embed.weight", "blocks.0.attention.weight", "head.weight")
HPARAMS = {"betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0}
SCHEDULE = {
    "kind": "warmup-cosine",
    "peak": 3e-3,
    "floor": 3e-4,
    "warmup_steps": 10,
    "total_steps": 200,
}
FIRST_ENDS, RESTART = 45, 40
DOCUMENTS_PER_STEP = 4
FIELDS = ("params", "optimizer", "buffers", "scheduler", "scaler", "guard", "rng", "cursor")


def raw(*parts: object) -> bytes:
    return digests.raw_of_bytes(repr(parts).encode())


class SyntheticRun:
    """Mutable records of a run; `view()` freezes them."""

    def __init__(self, *, num_ranks: int = 2, num_steps: int = 80) -> None:
        self.ranks, self.num_steps = range(num_ranks), num_steps
        self.documents = _documents(num_ranks * num_steps * DOCUMENTS_PER_STEP)
        self.index_path = Path("/nowhere/index.json")
        self.index_digest = "index"
        self.generations = (20, RESTART, 60)
        self.manifests = {step: _manifest(step, num_ranks) for step in self.generations}
        self.loads = [_load(rank, self.manifests[RESTART]) for rank in self.ranks]
        self.identities = {(a, r): _identity(a, num_ranks) for a in (0, 1) for r in self.ranks}
        self.steps = {
            (attempt, rank, step): self._record(attempt, rank, step)
            for attempt, steps in (
                (0, range(1, FIRST_ENDS + 1)),
                (1, range(RESTART + 1, num_steps + 1)),
            )
            for step in steps
            for rank in self.ranks
        }
        self.dropped_ranks: set[int] = set()

    def attempt(self, step: int) -> int:
        return 0 if step <= RESTART else 1

    def record(self, rank: int, step: int) -> StepRecord:
        return self.steps[self.attempt(step), rank, step]

    def change(self, rank: int, step: int, **changes: Any) -> None:
        self.steps[self.attempt(step), rank, step] = replace(self.record(rank, step), **changes)

    def digest(self, rank: int, step: int, stage: str, key: str, value: bytes) -> None:
        self.change(
            rank, step, digests={**self.record(rank, step).digests, Link(stage, key): value}
        )

    def metric(self, rank: int, step: int, **values: float) -> None:
        metrics = {name.replace("__", "/"): value for name, value in values.items()}
        self.change(rank, step, metrics={**self.record(rank, step).metrics, **metrics})

    def without_stage(self, stage: str) -> None:
        for key, record in self.steps.items():
            kept = {link: digest for link, digest in record.digests.items() if link.stage != stage}
            self.steps[key] = replace(record, digests=kept)

    def use(self, rank: int, step: int, names: Iterable[str]) -> None:
        names = tuple(names)
        content = {name: self.documents[name].digest for name in names if name in self.documents}
        self.change(rank, step, ids=list(names), content=content)

    def view(self, *, suspect: int | None = None, index: bool = True) -> View:
        anchors = Anchors(
            onset=suspect,
            suspect=suspect,
            reason="test",
            known_good=None,
            older_good=None,
            refused={},
        )
        return View(
            telemetry=Telemetry(segments=tuple(self._segments()), problems=()),
            generations=tuple(_facts(manifest) for manifest in self.manifests.values()),
            index=self._index() if index else None,
            artifacts=(),
            anchors=anchors,
            settings=_settings(),
        )

    def _index(self) -> DataIndex:
        return DataIndex(
            path=self.index_path,
            digest=self.index_digest,
            shards=(),
            documents=dict(self.documents),
        )

    def _segments(self) -> Iterable[Segment]:
        for (attempt, rank), identity in self.identities.items():
            if rank in self.dropped_ranks:
                continue
            yield Segment(
                path=Path(f"rank-{rank}.{attempt}.seg"),
                attempt=attempt,
                rank=rank,
                identity=identity,
                loads=tuple(
                    load for load in self.loads if (load.attempt, load.rank) == (attempt, rank)
                ),
                steps=tuple(
                    item for (a, r, _), item in self.steps.items() if (a, r) == (attempt, rank)
                ),
                torn_bytes=0,
                problem="",
            )

    def _record(self, attempt: int, rank: int, step: int) -> StepRecord:
        first = ((step - 1) * len(self.ranks) + rank) * DOCUMENTS_PER_STEP
        names = [f"doc-{number}" for number in range(first, first + DOCUMENTS_PER_STEP)]
        return StepRecord(
            attempt=attempt,
            rank=rank,
            step=step,
            metrics=_metrics(step),
            digests=_digests(rank, step),
            nonfinite=(),
            ids=[names[:2], names[2:]],
            content={name: self.documents[name].digest for name in names},
            series={},
            wall_time_s=float(step),
        )


def only(findings: tuple[Finding, ...], name: str) -> Finding:
    """The finding of that name, of which there must be exactly one."""
    (found,) = [finding for finding in findings if finding.name == name]
    return found


def learning_rate(step: int) -> float:
    """The schedule worked out apart from the product.

    Linear to 3e-3 over 10 steps, cosine to 3e-4 at 200.
    """
    if step <= 10:
        return 3e-4 * step
    return 1.65e-3 + 1.35e-3 * math.cos(math.pi * (step - 10) / 190)


def _digests(rank: int, step: int) -> dict[Link, bytes]:
    found = {Link("ids", "all"): raw("ids", rank, step)}
    for stage in (
        "params_before",
        "local_gradient",
        "reduced_gradient",
        "optimizer",
        "params_after",
    ):
        for key in TENSORS:
            if stage in ("params_before", "params_after"):
                value = raw("params", key, step - 1 if stage == "params_before" else step)
            else:
                value = raw(stage, key, step, rank if stage == "local_gradient" else None)
            found[Link(stage, key)] = value
    return found


def _metrics(step: int) -> dict[str, float]:
    return {
        "loss/sum": 96.0,
        "loss/mean": 3.0,
        "grad/norm_local": 0.5,
        "grad/norm": 0.8,
        "update/norm": 0.01,
        "tokens/total": 64.0 * step,
        "lr": learning_rate(step),
        "beta1": 0.9,
        "beta2": 0.95,
        "eps": 1e-8,
        "weight_decay": 0.1,
        "clip/threshold": 1.0,
        "rms_t/max": math.inf if step == 1 else 1.0,
    }


def _documents(number: int) -> dict[str, Document]:
    return {
        f"doc-{n}": Document(
            id=f"doc-{n}",
            shard=f"shard-{n % 3}.bin",
            offset_bytes=40 * n,
            length_bytes=40,
            source="rare" if n % 20 == 0 else ("prose", "code", "law")[n % 3],
            digest=raw("document", n).hex(),
        )
        for n in range(number)
    }


def _identity(attempt: int, world_size: int) -> Identity:
    return Identity(
        world_size=world_size,
        host="node-0",
        device="cpu",
        num_threads=1,
        precision="float32",
        kernel="math",
        deterministic=True,
        code_path=f"code/r{attempt + 1}",
        code_digest="code-1",
        config_digest="config",
        hparams=dict(HPARAMS),
    )


def state_tensors(step: int) -> dict[str, dict[str, str]]:
    return {
        "params": {key: raw("params", key, step).hex() for key in TENSORS},
        "optimizer": {f"{key}/exp_avg": raw("moment", key, step).hex() for key in TENSORS},
    }


def _manifest(step: int, num_ranks: int) -> Manifest:
    return Manifest(
        generation=f"step-{step:06d}",
        step=step,
        num_tokens=64 * step,
        world_size=num_ranks,
        files=(),
        fields={f"rank-{rank}": state_fields(step, rank) for rank in range(num_ranks)},
        tensors={f"rank-{rank}": state_tensors(step) for rank in range(num_ranks)},
        hparams=dict(HPARAMS),
        schedule=dict(SCHEDULE),
        scheduler={"step": step},
        code_path="code/r1",
        code_digest="code-1",
        config_digest="config",
        index_digest="index",
    )


def state_fields(step: int, rank: int) -> dict[str, str]:
    """Optimizer, params and scheduler are replicated; rng and cursor belong to one rank."""
    own = {"rng", "cursor"}
    return {name: raw(name, step, rank if name in own else None).hex() for name in FIELDS}


def _load(rank: int, manifest: Manifest) -> LoadRecord:
    return LoadRecord(
        attempt=1,
        rank=rank,
        step=manifest.step,
        generation=manifest.generation,
        fields=dict(manifest.fields[f"rank-{rank}"]),
        tensors=manifest.tensors[f"rank-{rank}"],
        wall_time_s=0.0,
    )


def _facts(manifest: Manifest) -> GenerationFacts:
    return GenerationFacts(
        name=manifest.generation,
        path=Path(manifest.generation),
        step=manifest.step,
        manifest=manifest,
        complete=True,
        file_digests={},
        nonfinite=(),
        problems=(),
    )


def _settings() -> RunSettings:
    return RunSettings(
        run=Path("/nowhere"),
        run_id="synthetic",
        telemetry=Path("/nowhere/telemetry"),
        checkpoints=Path("/nowhere/checkpoints"),
        data_index=None,
        config=None,
        code=None,
        logs=(),
        harness="trainer:factory",
        python_path=(),
        launch_kind="torchrun",
        num_processes=2,
    )
