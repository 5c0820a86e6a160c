"""The nouns that readers of other people's files return: checkpoints, series, events, data stores.

This module holds no behaviour beyond small derived properties and never reads or writes a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Role = Literal["parameter", "optimizer", "other"]
FieldKind = Literal["scheduler", "scaler", "fp8", "rng", "cursor", "config", "progress", "other"]
Severity = Literal["fatal", "error", "warning", "info"]
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedStep:
    """One place that states how many optimizer steps a checkpoint has behind it."""

    source: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One contiguous piece of a tensor on disk, little-endian, row-major.

    `path` is relative to the checkpoint (empty when the checkpoint is one file); `start` and `end` are bytes in that
    file. `offset` and `shape` are elements in the whole tensor. A `zip` container is a torch.save archive of one
    tensor that fills the range; its data record is looked up when it is read.
    """

    path: str
    start: int
    end: int
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    container: Literal["raw", "zip"] = "raw"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFacts:
    """One tensor: `dtype` in the spelling of safetensors (F32, BF16, F8_E4M3, I64 …), `shape` of the whole.

    `parameter` is the name of the parameter that an optimizer tensor belongs to, empty where that is ambiguous.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    role: Role
    chunks: tuple[Chunk, ...]
    parameter: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """A range of a file that the format itself vouches for with a CRC-32; `name` is what a person would call it."""

    path: str
    start: int
    end: int
    crc32: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldFacts:
    """A piece of state that is no tensor; `digest` is the hex XXH3-128 of its bytes, `values` are its scalars."""

    kind: FieldKind
    name: str
    rank: int | None
    path: str
    digest: str
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What another tool's manifest says that a file hashes to (`algorithm` as hashlib names it)."""

    path: str
    algorithm: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """One file of a checkpoint; `path` is relative to it."""

    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFacts:
    """One checkpoint of any layout, from its metadata alone: no tensor byte has been read.

    `complete` is computed by the layout's own rule, never from a pointer file; `interrupted` is why it is not, where
    nothing is damaged and the save merely did not end. `problems` are sentences about damage
    (it must not be loaded); `notes` say what this layout cannot tell. `globals` are the names that its pickles asked
    for; none was imported.
    """

    layout: str
    name: str
    path: Path
    stated_steps: tuple[StatedStep, ...]
    complete: bool
    world_size: int | None
    files: tuple[StoredFile, ...]
    tensors: tuple[TensorFacts, ...] = ()
    fields: tuple[FieldFacts, ...] = ()
    extents: tuple[Extent, ...] = ()
    promises: tuple[Promise, ...] = ()
    globals: tuple[str, ...] = ()
    interrupted: str = ""
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def steps_agree(self) -> bool:
        """Whether every place that states a step states the same one."""
        return len({stated.step for stated in self.stated_steps}) <= 1

    @property
    def step(self) -> int | None:
        """The step that all places agree on; where they do not, the first one's (by convention the name's)."""
        return self.stated_steps[0].step if self.stated_steps else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorStats:
    """What one pass over a tensor's elements counted; `first_nonfinite` is its index, in the file `nonfinite_path`.

    `absmax` is over finite elements; `l2` is NaN or infinite if an element is. `num_saturated` counts the largest
    finite FP8 value, which is what an overflow becomes in E4M3. `num_negative` is counted for
    second moments only and leaves -0.0 out. `zero_chunk_path` is the file of a chunk that is all zeros in a tensor that
    is not. What a quick scan does not measure is None.
    """

    dtype: str
    num_elements: int
    num_nan: int
    num_positive_inf: int
    num_negative_inf: int
    first_nonfinite: tuple[int, ...] | None
    nonfinite_path: str
    absmax: float
    l2: float | None = None
    num_zeros: int | None = None
    num_negative: int | None = None
    num_saturated: int | None = None
    zero_chunk_path: str = ""

    @property
    def num_nonfinite(self) -> int:
        """NaN and infinities together."""
        return self.num_nan + self.num_positive_inf + self.num_negative_inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Bytes that are not what the format or another tool's manifest vouches for."""

    path: str
    start: int
    end: int
    name: str
    expected: str
    seen: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDigest:
    """A file's tree digest (`digests.tree_root`) and the hex digests of its pieces, in order."""

    path: str
    size_bytes: int
    digest: str
    pieces: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one pass over all bytes of a checkpoint found; `stats` is by tensor name, float tensors only."""

    files: tuple[FileDigest, ...]
    stats: Mapping[str, TensorStats]
    damage: tuple[Damage, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One metric of one rank and attempt: `steps` and `values` are 1-D and equally long, in the order of the source.

    `name` is of `wire.chain.METRICS` where that is known, else as written. Values that a log hides (a missing key, a
    filtered zero) are NaN here, and `reasons` says why by position. `trusted` is False when the source cannot show
    what it claims to; `trust` is the reason, either way.
    """

    source: str
    name: str
    written_as: str
    attempt: int
    rank: int | None
    steps: Integers
    values: Floats
    times_s: Floats | None = None
    reasons: Mapping[int, str] = field(default_factory=dict)
    trusted: bool = True
    trust: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """A restart that went back: the attempt that begins, the last step before it, the first step of it."""

    attempt: int
    last_step: int
    first_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that a log or a device reported; `at` is as written, `time_s` is UNIX time where the zone is known."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """One telemetry source. `num_near_misses` are lines that look like the format's but could not be read."""

    format: str
    path: Path
    series: tuple[Series, ...]
    rollbacks: tuple[Rollback, ...] = ()
    events: tuple[Event, ...] = ()
    identity: Mapping[str, str] = field(default_factory=dict)
    num_lines: int = 0
    num_matched: int = 0
    num_near_misses: int = 0
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFacts:
    """The events of one file of system evidence."""

    format: str
    path: Path
    events: tuple[Event, ...]
    identity: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFacts:
    """One data store: what it holds, from its index and sizes alone."""

    format: str
    path: Path
    files: tuple[StoredFile, ...]
    num_documents: int | None
    num_tokens: int | None
    dtype: str
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStatistics:
    """How a sequence of token ids (or bytes) looks; entropies in bits, shares between 0 and 1.

    `unigram_kl` is against reference counts, NaN without them.
    """

    num_tokens: int
    unigram_kl: float
    entropy: float
    compression_ratio: float
    longest_repeat: int
    ngram_repetition: float
    num_eos: int
    share_outside_vocabulary: float
    share_padding: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentFacts:
    """One document of a data store: its number, where it lies, the digest of its bytes, and how they look."""

    number: int
    path: str
    start: int
    end: int
    digest: str
    statistics: TokenStatistics
