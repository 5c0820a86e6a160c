"""What an incident holds: evidence, findings, verdicts, trials, the journal.

This module holds no behaviour beyond small derived properties and never reads or writes a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from spiketriage.nouns.checkpoint import MeasuredGeneration
from spiketriage.redaction import KNOWN, Patterns

Outcome = Literal["agrees", "differs", "nonfinite", "not testable"]
# What a finding may do to a verdict; `diagnosis.role` says what each of them means.
Role = Literal["tests causes", "tests the causes that mention it", "against the run"]
VerdictKind = Literal[
    "established",
    "supported",
    "undetermined",
    "telemetry-artefact",
    "expected-behaviour",
    "unresolved",
    "nothing-found",
]
SETTINGS_NAME = "spiketriage.toml"  # the settings of a run, in its folder
# the incident's fact that names the run's harness; empty where no step can be executed
HARNESS = "harness"
# the fact that names the last recorded step; empty where none is
LAST_STEP = "last_step"
# the facts that say what an onset rests on: the signals that were judged, the last attempt that
# counts where a later one took its steps again, and what was rolled back
JUDGED, ATTEMPT, ROLLED_BACK = "judged", "attempt", "rolled back"
TRIGGER = "trigger"  # what the scan for spikes came to, whatever the checks found later
LOSS_CANDIDATES = "loss candidates"  # keys that look like a loss and are not known as one, as JSON
ALLOWED_OUTSIDE = "allowed outside"  # with a key of the settings: the place that it may name
CauseClass = Literal["data", "optimization", "numerics", "systems"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One item of evidence: where it lies, what it is, what it hashed to, and what was expected.

    `kept` says how it was secured: `copied`, `pinned`, `referenced`, or `missing`. A copy without
    its credentials has a size and a `digest` of its own; `source_digest` is what it was made from,
    and empty for any other.
    """

    path: str
    kind: str
    size_bytes: int
    mtime_ns: int
    digest: str
    expected: str
    kept: str
    note: str
    source_digest: str = ""


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
    `role` and `dates_onset` are what its emitter declared of it (`diagnosis.role`).
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
    role: Role = "tests causes"
    dates_onset: bool = False
    trials: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchors:
    """The two anchors of an incident, kept apart, and the generations they select.

    Why there are two: docs/design-reasons.md#two-anchors.

    `onset` is the first step with any anomaly; `suspect` the step that batch experiments use.
    """

    onset: int | None
    suspect: int | None
    reason: str
    known_good: str | None
    older_good: str | None
    refused: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """The anchors as `freeze` found them, whatever a `check` makes of them later."""

    onset: int | None
    suspect: int | None


NO_SPIKE = Spike(onset=None, suspect=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeze:
    """How a freeze ended, which it says last: an incident without one has half of its evidence.

    `gaps` are the artifacts that it could not keep; the other two are what the telemetry says of
    itself: damage, and what had to be assumed.
    """

    is_whole: bool
    gaps: tuple[str, ...] = ()
    telemetry_problems: tuple[str, ...] = ()
    telemetry_notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseView:
    """How one cause stands against the findings.

    What speaks for it, against it, is untested, and what it leaves unexplained: findings that every
    cause has to live with and that this one does not predict.
    """

    name: str
    cause_class: str
    status: Literal["decided", "open", "contradicted"]
    supporting: tuple[str, ...]
    contradicting: tuple[str, ...]
    untested: tuple[str, ...]
    unexplained: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What may be said. `cause` is set only for `established` and `supported`.

    `beside` names findings against the run that neither the cause nor a candidate explains.
    """

    kind: VerdictKind
    cause: str | None
    cause_class: str | None
    candidates: tuple[str, ...]
    beside: tuple[str, ...] = ()
    explanation: str
    where: Where
    causes: tuple[CauseView, ...]
    not_tested: tuple[str, ...]
    repair: str
    next_experiment: str | None
    steps_executed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """`spiketriage.toml` of a run, or what was found in a folder without one.

    Every path is absolute; `outside` are those of them that lie outside the run, by their key in
    the file and with links followed.

    `columns` maps the keys of logs that other people's code wrote to names of `wire.chain.METRICS`,
    or to `step`. `redact` is what counts as a credential beside what is known as one.
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
    redact: Patterns = KNOWN
    outside: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """One trial as the incident keeps it.

    `factors` is the trial's `wire.trial.Factors` as a mapping.
    """

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
class SettingRow:
    """What the experiments of an incident start from, so that a verdict needs no evidence again.

    `basis` is a digest of all that the setting was derived from: on another basis the row is stale.
    `suspect`, `alarmed`, `spiked` and `unreplayable` are those of `diagnosis.setting.Setting`, and
    `replay_steps` is what one replay of the suspect window executes.
    """

    basis: str
    suspect: int
    alarmed: bool
    spiked: bool
    unreplayable: str
    replay_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentRow:
    """One experiment in that setting: what it would execute, or why it is not possible.

    `trials` are the keys of its trials, which other experiments may share, and `trial_steps` is
    what each of them executes.
    """

    name: str
    possible: bool
    num_steps: int
    why: str
    trials: tuple[str, ...]
    trial_steps: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRow:
    """What became of one file or folder below the incident's folder, which `path` is relative to.

    A folder is `begun` by a command that is about to write in it, and `written` when the command
    came to its end: a command that was killed leaves files that its own row explains. A file is
    `written`, with its `sha256`, or `removed`.
    """

    path: str
    state: Literal["begun", "written", "removed"]
    sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPoint:
    """One step of production as the incident keeps it for tables and plots.

    Global values, all ranks.
    """

    attempt: int
    step: int
    loss: float
    grad_norm: float
    update_norm: float
    lr: float
    alarm: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalRow:
    """One command in the incident's chained journal; `previous` is the SHA-256 of the row before.

    `trusted` names the code of the run that the command imported, and since when its user trusts
    it; empty where nothing was. The row seals what the commands so far left: `heads` is the number
    and the digest of the last row of every table of results, and the digest of `meta`.
    """

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
    trusted: str = ""
    heads: Mapping[str, str] = field(default_factory=dict)


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
    setting: SettingRow | None = None
    experiments: tuple[ExperimentRow, ...] = ()
    generations: tuple[MeasuredGeneration, ...] = ()
    spike: Spike = NO_SPIKE
    freeze: Freeze | None = None
    files: tuple[FileRow, ...] = ()

    @property
    def allowed_outside(self) -> tuple[str, ...]:
        """The places outside the run that somebody allowed its settings to name."""
        return tuple(
            value for key, value in self.facts.items() if key.startswith(f"{ALLOWED_OUTSIDE}/")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a runbook step hands to the command line: the result for stdout and the next command.

    `lines` are plain text for people; `data` goes into the JSON envelope; `next_commands` can be
    pasted.
    """

    incident: str
    exit_code: int
    verdict: str
    lines: tuple[str, ...]
    data: Mapping[str, Any]
    next_commands: tuple[str, ...]
