"""The nouns that travel between modules: frozen, slotted, keyword-only dataclasses.

This module holds no behaviour beyond small derived properties and never reads or writes a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

Outcome = Literal["agrees", "differs", "nonfinite", "not testable"]
VerdictKind = Literal[
    "established",
    "supported",
    "undetermined",
    "telemetry-artefact",
    "expected-behaviour",
    "unresolved",
    "nothing-found",
]
NATIVE = "native"  # the layout of the generations that our own training side saves
HARNESS = "harness"  # the incident's fact that names the run's harness; empty where no step can be executed
CauseClass = Literal["data", "optimization", "numerics", "systems"]


class Link(NamedTuple):
    """One link of the step chain: a stage of `wire.chain.STAGES` and a key (layer, tensor or field)."""

    stage: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a segment's writer says about itself, once per segment.

    `code_path` is relative to the run folder; digests are hex XXH3-128, empty where nobody named the file.
    `environment` holds the variables of an allow-list only; `placement` says where this rank runs (local rank,
    process, mesh coordinates); `link_digest` names the algorithm behind the links of the step chain.
    """

    world_size: int
    host: str
    device: str
    num_threads: int
    precision: str
    kernel: str
    deterministic: bool
    code_path: str
    code_digest: str
    config_digest: str
    hparams: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    tokenizer_digest: str = ""
    dataset_digest: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    placement: Mapping[str, Any] = field(default_factory=dict)
    link_digest: str = "xxh3-128"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """The chain of one step on one rank.

    `metrics` are named and have units in `wire.chain.METRICS`; `digests` are 16 raw bytes a link;
    `nonfinite` lists the links that held a NaN or an infinity, in chain order; `ids` is whatever the
    harness uses to name a batch; `content` maps document id → hex digest of the bytes as consumed.
    `rng` (hex digest) and `cursor` were captured before the forward; `num_dropped` counts the records of this
    segment that were lost before this one was written.
    """

    attempt: int
    rank: int
    step: int
    metrics: Mapping[str, float]
    digests: Mapping[Link, bytes]
    nonfinite: tuple[Link, ...]
    ids: Any
    content: Mapping[str, str]
    series: Mapping[str, tuple[float, ...]]
    wall_time_s: float
    rng: str = ""
    cursor: Any = None
    num_dropped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What a recorder says about itself: what it left out, and why; `step` is None outside a step.

    `kind` is one of `tensors`, `layers`, `thinning`, `off`, `dropped`, `in-flight`, `fp8-fallback`, `anomaly`.
    """

    kind: str
    step: int | None
    text: str
    data: Mapping[str, Any]
    wall_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRecord:
    """What a rank found itself holding right after it loaded a generation; hex digests by field."""

    attempt: int
    rank: int
    step: int
    generation: str
    fields: Mapping[str, str]
    tensors: Mapping[str, Mapping[str, str]]
    wall_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One rank's telemetry file: its identity, its records, what its writer left out, what is wrong with its tail.

    A log that another tool wrote has no identity, and its records hold metrics only.
    """

    path: Path
    attempt: int
    rank: int
    started_at: str
    identity: Identity | None
    loads: tuple[LoadRecord, ...]
    steps: tuple[StepRecord, ...]
    torn_bytes: int
    problem: str
    notices: tuple[Notice, ...] = ()
    num_dropped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file as a manifest or an index lists it; `path` is relative to that file's folder."""

    path: str
    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """`MANIFEST.json` of a native generation; per-rank field and tensor digests are hex XXH3-128.

    `files` have the tree digests of `digests.tree_of_file`. `nonfinite` names, by rank, what was not finite when it was
    saved. An empty digest was not stated by whoever saved.
    """

    generation: str
    step: int
    num_tokens: int
    world_size: int
    files: tuple[FileEntry, ...]
    fields: Mapping[str, Mapping[str, str]]
    tensors: Mapping[str, Mapping[str, Mapping[str, str]]]
    hparams: Mapping[str, Any]
    schedule: Mapping[str, Any]
    scheduler: Mapping[str, Any]
    code_path: str
    code_digest: str
    config_digest: str
    index_digest: str
    tokenizer_digest: str = ""
    model_digest: str = ""
    nonfinite: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One document of a data store: where its bytes lie and what they should hash to."""

    id: str
    shard: str
    offset_bytes: int
    length_bytes: int
    source: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DataIndex:
    """The index of a data store, as read; `digest` is that of the index file itself."""

    path: Path
    digest: str
    shards: tuple[FileEntry, ...]
    documents: Mapping[str, Document]


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One item of evidence: where it lies, what it is, what it hashed to, and what was expected.

    `kept` says how it was secured: `copied`, `pinned`, `marker`, `referenced`, or `missing`.
    """

    path: str
    kind: str
    size_bytes: int
    mtime_ns: int
    digest: str
    expected: str
    kept: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """A place in a run; every part may be unknown."""

    step: int | None = None
    stage: str | None = None
    key: str | None = None
    rank: int | None = None
    path: str | None = None
    field: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One typed result of a check or an experiment.

    `judged` is False for context that every healthy run shows too (a code change at a restart).
    `magnitude` is the effect in the unit that `summary` names; `trials` are the keys behind it.
    """

    name: str
    outcome: Outcome
    summary: str
    source: Literal["check", "experiment"] = "check"
    where: Where = field(default_factory=Where)
    expected: str = ""
    seen: str = ""
    magnitude: float | None = None
    judged: bool = True
    trials: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchors:
    """The two anchors of an incident, kept apart (DESIGN §2), and the generations they select.

    `onset` is the first step with any anomaly; `suspect` the step that batch experiments use.
    """

    onset: int | None
    suspect: int | None
    reason: str
    known_good: str | None
    older_good: str | None
    refused: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseView:
    """How one cause stands against the findings: what speaks for it, against it, and is untested."""

    name: str
    cause_class: str
    status: Literal["decided", "open", "contradicted"]
    supporting: tuple[str, ...]
    contradicting: tuple[str, ...]
    untested: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What may be said. `cause` is set only for `established` and `supported`."""

    kind: VerdictKind
    cause: str | None
    cause_class: str | None
    candidates: tuple[str, ...]
    explanation: str
    where: Where
    causes: tuple[CauseView, ...]
    not_tested: tuple[str, ...]
    repair: str
    next_experiment: str | None
    steps_executed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationFacts:
    """One generation folder as found on disk; `problems` is empty when it may be loaded.

    `file_digests` are measured (path → hex); `nonfinite` names tensors that hold NaN or an infinity. A `layout` other
    than ours has no manifest: then `stated_steps` says what each place in it claims, `odd` what cannot be in a healthy
    state, and `notes` what the layout cannot tell. `interrupted` is why it is not complete, where nothing is damaged.
    """

    name: str
    path: Path
    step: int | None
    manifest: Manifest | None
    complete: bool
    file_digests: Mapping[str, str]
    nonfinite: tuple[str, ...]
    problems: tuple[str, ...]
    layout: str = NATIVE
    stated_steps: Mapping[str, int] = field(default_factory=dict)
    world_size: int | None = None
    interrupted: str = ""
    odd: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """`spiketriage.toml` of a run, or what was found in a folder without one; every path is absolute.

    `columns` maps the keys of logs that other people's code wrote to names of `wire.chain.METRICS`, or to `step`.
    """

    run: Path
    run_id: str
    telemetry: Path
    checkpoints: Path
    data_index: Path | None
    config: Path | None
    code: Path | None
    logs: tuple[Path, ...]
    harness: str
    python_path: tuple[str, ...]
    launch_kind: str
    num_processes: int
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """One trial as the incident keeps it; `factors` is the trial's `wire.trial.Factors` as a mapping."""

    key: str
    kind: str
    purpose: str
    factors: Mapping[str, str]
    first_step: int
    last_step: int
    repeat: int
    state: Literal["planned", "done", "failed", "interrupted"]
    num_steps_executed: int
    wall_s: float
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPoint:
    """One step of production as the incident keeps it for tables and plots: global values, all ranks."""

    attempt: int
    step: int
    loss: float
    grad_norm: float
    update_norm: float
    lr: float
    alarm: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalRow:
    """One command in the incident's chained journal; `previous` is the SHA-256 of the row before."""

    number: int
    at: str
    who: str
    host: str
    argv: str
    version: str
    outcome: str
    exit_code: int
    duration_s: float
    previous: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dossier:
    """Everything that an incident holds, newest rows only, as the report and the judge read it."""

    incident: str
    facts: Mapping[str, str]
    anchors: Anchors | None
    artifacts: tuple[Artifact, ...]
    findings: tuple[Finding, ...]
    trials: tuple[TrialRow, ...]
    steps: tuple[StepPoint, ...]
    verdict: Verdict | None
    journal: tuple[JournalRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a runbook step hands to the command line: the result for stdout and the next command.

    `lines` are plain text for people; `data` goes into the JSON envelope; `next_commands` can be pasted.
    """

    incident: str
    exit_code: int
    verdict: str
    lines: tuple[str, ...]
    data: Mapping[str, Any]
    next_commands: tuple[str, ...]
