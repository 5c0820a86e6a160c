"""What was recorded while a run trained: segments, step records, series, events.

This module holds no behaviour beyond small derived properties and never reads or writes a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from spiketriage.nouns.listing import readable

if TYPE_CHECKING:  # `--help` names these types and must not pay for numpy
    import numpy as np
    from numpy.typing import NDArray

Severity = Literal["fatal", "error", "warning", "info"]


class Link(NamedTuple):
    """One link of the step chain: a stage of `wire.chain.STAGES` and a layer, tensor or field."""

    stage: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a segment's writer says about itself, once per segment.

    `code_path` is relative to the run folder where the code lies in it; digests are hex XXH3-128,
    empty where nobody named
    the file. `environment` holds the variables of an allow-list only; `placement` says where this
    rank runs (local rank, process, mesh coordinates); `link_digest` names the algorithm behind the
    links of the step chain.
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
    `nonfinite` lists the links that held a NaN or an infinity, in chain order; `ids` is whatever
    the harness uses to name a batch; `content` maps document id → hex digest of the bytes as
    consumed. `rng` (hex digest) and `cursor` were captured before the forward; `num_dropped` counts
    the records of this segment that were lost before this one was written.
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
class MetricColumn:
    """One metric over the steps of a segment or of production, 1-D and as long as those.

    `is_logged` tells a NaN that was written from a value that was not.
    """

    values: NDArray[np.float64]
    is_logged: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepColumns:
    """The metrics of a segment as columns; `steps` grow, and no step is there twice.

    `times_s` is UNIX time, NaN where the log holds none.
    """

    steps: NDArray[np.int64]
    metrics: Mapping[str, MetricColumn]
    times_s: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What a recorder says about itself: what it left out, and why; `step` is None outside a step.

    `kind` is one of `tensors`, `layers`, `thinning`, `off`, `dropped`, `in-flight`, `fp8-fallback`,
    `anomaly`.
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
    """One rank's telemetry file: its identity, its records, and what is wrong with its tail.

    A log that another tool wrote has no identity; its metrics are kept as `columns`, from which
    `steps` makes records when somebody asks for one.
    """

    path: Path
    attempt: int
    rank: int
    identity: Identity | None
    loads: tuple[LoadRecord, ...]
    steps: Sequence[StepRecord]
    torn_bytes: int
    problem: str
    notices: tuple[Notice, ...] = ()
    num_dropped: int = 0
    columns: StepColumns | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What a log or a device reported; `at` is as written, `time_s` UNIX time if known."""

    kind: str
    severity: Severity
    sentence: str
    source: str
    line: int | None = None
    at: str = ""
    time_s: float | None = None
    host: str = ""
    device: str = ""
    rank: int | None = None
    step: int | None = None
    code: int | None = None

    @property
    def headline(self) -> str:
        """What it is, on whom and where: `fatal xid rank 3 step 8 (12:01 node-7 cuda:2): …`."""
        head = f"{self.severity} {self.kind}"
        if self.rank is not None:
            head = f"{head} rank {self.rank}"
        if self.step is not None:
            head = f"{head} step {self.step}"
        where = " ".join(part for part in (self.at, self.host, self.device) if part)
        if where:
            head = f"{head} ({where})"
        return f"{head}: {self.sentence}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFacts:
    """The events of one file of system evidence."""

    format: str
    path: Path
    events: tuple[Event, ...]
    identity: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Whatever words the sentences quote, they can be read and stored."""
        object.__setattr__(self, "problems", readable(self.problems))
        object.__setattr__(self, "notes", readable(self.notes))
