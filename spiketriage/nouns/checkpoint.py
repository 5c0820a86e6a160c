"""Saved training state as it lies on disk: what was saved, its tensors, and what one pass measured.

A *generation* is what our own training side saves, with a manifest; a *checkpoint* is what the
trainer of somebody else saves. The generations of a run are `GenerationFacts` whoever saved them:
`layout` says who, and only ours have a manifest.

This module holds no behaviour beyond small derived properties and never reads or writes a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from spiketriage.nouns.file import FileDigest, StoredFile
from spiketriage.nouns.listing import readable

NATIVE = "native"  # the layout of the generations that our own training side saves
TensorRole = Literal["parameter", "optimizer", "other"]
FieldKind = Literal["scheduler", "scaler", "fp8", "rng", "cursor", "config", "progress", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """`MANIFEST.json` of a native generation; per-rank field and tensor digests are hex XXH3-128.

    `files` have the tree digests of `digests.tree_of_file`. `nonfinite` names, by rank, what was
    not finite when it was saved. An empty digest was not stated by whoever saved.
    """

    generation: str
    step: int
    num_tokens: int
    world_size: int
    files: tuple[StoredFile, ...]
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
class SavedState:
    """What can be said of any saved training state, whoever saved it.

    `complete` is computed by the layout's own rule, never from a pointer file; `interrupted` is why
    it is not, where nothing is damaged and the save merely did not end. `problems` are sentences
    about damage: with any, it must not be loaded. `notes` say what the layout cannot tell.
    """

    layout: str
    name: str
    path: Path
    complete: bool
    world_size: int | None = None
    interrupted: str = ""
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Whatever words the sentences quote, they can be read and stored."""
        object.__setattr__(self, "problems", readable(self.problems))
        object.__setattr__(self, "notes", readable(self.notes))


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationFacts(SavedState):
    """One restart point of a run, as measured: ours with its manifest, or a foreign checkpoint.

    `file_digests` are measured (path → hex); `nonfinite` names tensors that hold NaN or an
    infinity, and `odd` what else cannot be in a healthy state. `stated_steps` says what each place
    in a foreign checkpoint claims; ours has its step from the manifest, or else from its name.
    """

    layout: str = NATIVE
    step: int | None
    manifest: Manifest | None
    file_digests: Mapping[str, str]
    nonfinite: tuple[str, ...]
    odd: tuple[str, ...] = ()
    stated_steps: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredGeneration:
    """What `freeze` or `hash` measured of a generation, as an incident keeps it.

    The fields of `GenerationFacts` but for its place and its manifest, which the evidence holds.
    """

    name: str
    step: int | None
    layout: str
    complete: bool
    world_size: int | None
    nonfinite: tuple[str, ...]
    problems: tuple[str, ...]
    odd: tuple[str, ...]
    interrupted: str
    notes: tuple[str, ...]
    stated_steps: Mapping[str, int]
    file_digests: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedStep:
    """One place that states how many optimizer steps a checkpoint has behind it."""

    source: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One contiguous piece of a tensor on disk, little-endian, row-major.

    `path` is relative to the checkpoint (empty when the checkpoint is one file); `start` and `end`
    are bytes in that file. `offset` and `shape` are elements in the whole tensor. A `zip` container
    is a torch.save archive of one tensor that fills the range; its data record is looked up when it
    is read.
    """

    path: str
    start: int
    end: int
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    container: Literal["raw", "zip"] = "raw"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFacts:
    """One tensor, whole: `dtype` is spelled as safetensors does (F32, BF16, F8_E4M3, I64 …).

    `parameter` is the name of the parameter that an optimizer tensor belongs to, empty where that
    is ambiguous.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    role: TensorRole
    chunks: tuple[Chunk, ...]
    parameter: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """A range of a file that the format vouches for with a CRC-32; `name` is for people."""

    path: str
    start: int
    end: int
    crc32: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldFacts:
    """A piece of state that is no tensor: its hex XXH3-128 and its scalars (`values`)."""

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
class CheckpointFacts(SavedState):
    """One saved state of any layout, from its metadata alone: no tensor byte has been read.

    `promises` is what another tool's manifest vouches for; `globals` are the names that its pickles
    asked for, of which none was imported.
    """

    stated_steps: tuple[StatedStep, ...]
    files: tuple[StoredFile, ...]
    tensors: tuple[TensorFacts, ...] = ()
    fields: tuple[FieldFacts, ...] = ()
    extents: tuple[Extent, ...] = ()
    promises: tuple[Promise, ...] = ()
    globals: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def steps_agree(self) -> bool:
        """Whether every place that states a step states the same one."""
        return len({stated.step for stated in self.stated_steps}) <= 1

    @property
    def step(self) -> int | None:
        """The step that all places agree on, else the first one's (by convention the name's)."""
        if self.stated_steps:
            return self.stated_steps[0].step
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorStats:
    """What one pass over a tensor's elements counted.

    `first_nonfinite` is the index of the first NaN or infinity, in the file `nonfinite_path`.
    `absmax` is over finite elements; `l2` is NaN or infinite if an element is. `num_saturated`
    counts the largest finite FP8 value, which is what an overflow becomes in E4M3. `num_negative`
    is counted for second moments only and leaves -0.0 out. `zero_chunk_path` is the file of a chunk
    that is all zeros in a tensor that is not. What a quick scan does not measure is None.
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
class Measurement:
    """What one pass over all bytes of a checkpoint found; `stats` are of float tensors, by name."""

    files: tuple[FileDigest, ...]
    stats: Mapping[str, TensorStats]
    damage: tuple[Damage, ...]
    problems: tuple[str, ...]
