"""Megatron's order of samples, from the index files that it caches: samples to sequences.

This module never recomputes a shuffle: its seed and epochs are in the run's arguments, not in the
data.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from spiketriage.errors import CorruptFileError, EvidenceError, RefusedError
from spiketriage.nouns.series import Integers
from spiketriage.readers.data.disk import read_range
from spiketriage.readers.data.npy_file import NpyArray, as_rows, read_npy
from spiketriage.readers.json_file import parse_object
from spiketriage.readers.look import look, look_at_file

SPLIT = "train"
KINDS = ("document_index", "sample_index", "shuffle_index")
_SHOWN = 4
MAX_DESCRIPTION_BYTES = 1 << 20
MAX_SEQUENCES = 1 << 22  # of one step


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cache:
    """The three index files of one cache, and what its description states of them.

    `sequence_length` is None, and `dataset` empty, where it states none.
    """

    name: str
    document_index: Path
    sample_index: Path
    shuffle_index: Path
    sequence_length: int | None
    dataset: str
    split: str


def samples_of_step(step: int, global_batch: int) -> range:
    """The samples that step `step` (the first is 1) consumes, counted from 0.

    Raises:
        RefusedError: a step or batch below 1.
    """
    if step < 1 or global_batch < 1:
        raise RefusedError(f"step {step} with a global batch of {global_batch}: both start at 1")
    return range((step - 1) * global_batch, step * global_batch)


def sequences_of_samples(
    index_path: Path, samples: range, sequence_length: int, caches: Path | None
) -> Integers:
    """The sequences of the set that `samples` touch, in order of use.

    Raises:
        RefusedError: no cache fits, several do, or it ends before these samples.
        EvidenceError: a cache is damaged.
    """
    cache = _fitting(index_path, sequence_length, caches)
    shuffle, order = read_npy(cache.shuffle_index), read_npy(cache.document_index)
    starts = read_npy(cache.sample_index)
    are_lists = len(shuffle.shape) == 1 and len(order.shape) == 1
    if not are_lists or len(starts.shape) != 2 or starts.shape[1] != 2:
        seen = f"{starts.shape}, {shuffle.shape} and {order.shape}"
        raise CorruptFileError(
            cache.sample_index, "shape", expected="(n + 1, 2), (n,) and (m,)", seen=seen
        )
    if samples.stop > shuffle.shape[0]:
        wanted = (
            f"samples {samples.start} to {samples.stop - 1} are wanted, the cache holds "
            f"{shuffle.shape[0]}"
        )
        raise RefusedError(
            f"{cache.shuffle_index}: {wanted}", hint="give the cache of the run that made this step"
        )
    shuffled = shuffle.rows(samples.start, samples.stop)
    sequences = [_sequences_of(order, starts, int(sample)) for sample in shuffled]
    if sequences:
        return np.concatenate(sequences)
    return np.zeros(0, dtype=np.int64)


def _sequences_of(order: NpyArray, starts: NpyArray, sample: int) -> Integers:
    if not 0 <= sample < starts.shape[0] - 1:
        expected = f"a sample below {starts.shape[0] - 1}"
        raise CorruptFileError(starts.path, "sample", expected=expected, seen=sample)
    rows = as_rows(starts.rows(sample, sample + 2), 2)
    first, last = int(rows[0, 0]), int(rows[1, 0])
    if not 0 <= first <= last < order.shape[0] or last - first > MAX_SEQUENCES:
        expected = f"places in order within {order.shape[0]}"
        raise CorruptFileError(
            starts.path, f"sample {sample}", expected=expected, seen=f"{first} to {last}"
        )
    return order.rows(first, last + 1)


def _fitting(index_path: Path, sequence_length: int, caches: Path | None) -> _Cache:
    prefix = index_path.with_suffix("")
    places = [caches] if caches is not None else _usual_places(prefix)
    held = list(chain.from_iterable(map(_caches_in, places)))
    hint = "give the folder of --data-cache-path, or of <prefix>/cache/GPTDataset_indices"
    if not held:
        missing = "*-document_index.npy, *-sample_index.npy and *-shuffle_index.npy"
        looked = ", ".join(map(str, places))
        raise RefusedError(
            f"{index_path}: the order of samples needs {missing}; none in {looked}", hint=hint
        )
    fitting = []
    for cache in held:
        is_own = cache.split == SPLIT and cache.dataset in ("", prefix.name)
        if is_own and cache.sequence_length in (None, sequence_length):
            fitting.append(cache)
    if not fitting:
        seen = ", ".join(map(_in_words, held[:_SHOWN]))
        wanted = f"the training split of {prefix.name} with sequence length {sequence_length}"
        raise RefusedError(f"{index_path}: no cache is of {wanted}; found {seen}", hint=hint)
    if len(fitting) > 1:
        names = ", ".join(cache.name for cache in fitting[:_SHOWN])
        raise RefusedError(
            f"{index_path}: {len(fitting)} caches fit ({names})",
            hint="leave only the run's own there",
        )
    return fitting[0]


def _in_words(cache: _Cache) -> str:
    return f"{cache.name} ({cache.dataset}, {cache.split}, length {cache.sequence_length})"


def _usual_places(prefix: Path) -> list[Path]:
    """Where Megatron caches by default, then the folders that people give."""
    usual = [
        prefix / "cache" / "GPTDataset_indices",
        prefix.parent / "cache",
        prefix.parent / "cache_indices",
    ]
    return [*usual, prefix.parent / "index_cache", prefix.parent]


def _caches_in(folder: Path) -> list[_Cache]:
    """Whole caches of a folder.

    Raises:
        RefusedError: the folder also holds the order of a blend, which permutes the samples again.
    """
    try:
        seen = look(folder)
    except EvidenceError:
        return []
    names = set(seen.names)
    if any(name.endswith("dataset_sample_index.npy") for name in names):
        blend = (
            "holds the cached order of a blend of several sets, in which a step is not a range "
            "of one set's samples"
        )
        raise RefusedError(f"{folder}: {blend}")
    ends = f"{KINDS[0]}.npy"
    bases = sorted(name.removesuffix(ends) for name in names if name.endswith(ends))
    whole: list[_Cache] = []
    for base in bases:
        if all(f"{base}{kind}.npy" in names for kind in KINDS):
            whole.append(_cache(folder, base))
    return whole


def _cache(folder: Path, base: str) -> _Cache:
    described = _description(folder / f"{base}description.txt")
    length, dataset = described.get("sequence_length"), described.get("dataset_path")
    split = described.get("index_split")
    if not isinstance(split, str):  # the name says it then
        split = "other" if "valid" in base or "test" in base else SPLIT
    return _Cache(
        name=base.rstrip("-_") or folder.name,
        document_index=folder / f"{base}document_index.npy",
        sample_index=folder / f"{base}sample_index.npy",
        shuffle_index=folder / f"{base}shuffle_index.npy",
        sequence_length=length if isinstance(length, int) else None,
        dataset=Path(dataset).name if isinstance(dataset, str) else "",
        split=split,
    )


def _description(path: Path) -> dict[str, object]:
    try:
        size_bytes = min(look_at_file(path).size_bytes, MAX_DESCRIPTION_BYTES)
        return parse_object(path, read_range(path, 0, size_bytes, "text"))
    except EvidenceError:
        return {}  # a cache without its description is still a cache; its name then tells the split
