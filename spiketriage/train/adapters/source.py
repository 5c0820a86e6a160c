"""The data of a loop: a `DataLoader` taken apart, so that every micro-batch can be read again.

It never draws from the training's generators and never changes what the user's data set or
collation returns.

A micro-batch is named by its epoch and the keys that the batch sampler gave: a pure function of
both is what reading and collating them gives, since both draw from a stream that this name fixes.
So does the order of an epoch, from the seed and the epoch's number; a rank's share is the sampler's
own business, as ever.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from spiketriage.digests import of_bytes
from spiketriage.errors import UsageError
from spiketriage.train.adapters.streams import Stream

WORKER_SETTINGS = ("num_workers", "pin_memory", "timeout", "worker_init_fn", "prefetch_factor")


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroName:
    """The name of a micro-batch: its epoch, its place there, and the keys of its examples."""

    epoch: int
    at: int
    keys: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """A micro-batch as read: its examples, and the digests of its documents as consumed."""

    name: MicroName
    examples: list[Any]
    documents: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Micro:
    """A micro-batch as the loop gets it (`batch`), with its name and what it was made from."""

    name: MicroName
    documents: Mapping[str, str]
    batch: Any

    def pin_memory(self) -> Micro:
        """For a loader that pins: the batch in page-locked memory (untested)."""
        from torch.utils.data._utils.pin_memory import pin_memory  # noqa: PLC0415 - private, needed by few

        return Micro(name=self.name, documents=self.documents, batch=pin_memory(self.batch))  # type: ignore[no-untyped-call]


def ids_of(names: Sequence[MicroName]) -> dict[str, Any]:
    """The name of a step's batch, plain JSON, of those of its micro-batches."""
    first = names[0]
    return {
        "epoch": first.epoch,
        "at": first.at,
        "micros": [list(name.keys) for name in names],
    }


class Source:
    """The micro-batches of `loader`, by name or in order.

    `loader` is a torch `DataLoader` or one that accelerate made. A data set may have
    `content(key) -> {document: bytes}`, the documents behind an example under their names in the
    data index; otherwise an example is a document of its own, named by epoch and key.

    Raises:
        UsageError: the data set is iterable or unbatched: its examples have no names.
    """

    def __init__(self, loader: Any, *, seed: int = 0) -> None:
        if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
            raise UsageError(
                "a loader whose examples have no keys cannot be read again: this needs a "
                "map-style data set in batches",
                hint="give the data set __getitem__ and __len__, and the loader a batch_size",
            )
        self._loader, self._seed = loader, seed
        self._samplers = _samplers(loader)
        self._first_seeds = {}
        for generator in _generators(self._samplers):
            self._first_seeds[id(generator)] = generator.initial_seed()
        self._reader = _Reader(loader.dataset, seed)
        self._collate = _Collate(loader.collate_fn, seed)

    def __len__(self) -> int:
        """Micro-batches of this rank in an epoch."""
        return len(self._loader.batch_sampler)

    def names(
        self, epoch: int, at: int = 0, left_out: frozenset[str] = frozenset()
    ) -> Iterator[MicroName]:
        """Names of `epoch` from place `at` on, without those with `<epoch>:<at>` in `left_out`."""
        stream = Stream(self._seed, "order", epoch)
        with stream:
            self._set_epoch(epoch)
            sampled = iter(self._loader.batch_sampler)
        for place in range(len(self)):
            with stream:
                keys = next(sampled, None)
            if keys is None:
                return
            if place >= at and f"{epoch}:{place}" not in left_out:
                yield MicroName(epoch=epoch, at=place, keys=tuple(keys))

    def epoch(
        self, epoch: int, at: int = 0, left_out: frozenset[str] = frozenset()
    ) -> Iterator[Micro]:
        """The micro-batches of these names, read by the workers that the loader asks for."""
        loader = self._loader
        if not loader.num_workers:
            for name in self.names(epoch, at, left_out):
                yield self.build(self.read(name))
            return
        settings = {setting: getattr(loader, setting) for setting in WORKER_SETTINGS}
        names = _Names(lambda: self.names(epoch, at, left_out), len(self))
        stream = Stream(self._seed, "workers", epoch)
        with stream:
            reading = iter(
                DataLoader(
                    self._reader,
                    batch_sampler=names,
                    collate_fn=self._collate,
                    multiprocessing_context=loader.multiprocessing_context,
                    **settings,
                )
            )
        while True:
            with stream:
                micro = next(reading, None)
            if micro is None:
                return
            yield micro

    def read(self, name: MicroName) -> Raw:
        """The examples that a name stands for."""
        return self._reader.__getitems__(name)

    def build(self, raw: Raw) -> Micro:
        """Those examples, collated as the loader does."""
        return self._collate(raw)

    def _set_epoch(self, epoch: int) -> None:
        for sampler in self._samplers:
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
        for generator in _generators(self._samplers):
            # A generator that goes on from epoch to epoch would make an epoch's order depend on how
            # often it was begun. One that a sampler made since is the sampler's own business.
            if id(generator) in self._first_seeds:
                generator.manual_seed(self._first_seeds[id(generator)] + epoch)


class _Names:
    """A batch sampler of names."""

    def __init__(self, names: Callable[[], Iterator[MicroName]], num: int) -> None:
        self._names, self._num = names, num

    def __iter__(self) -> Iterator[Any]:  # what torch calls a batch of keys
        return self._names()

    def __len__(self) -> int:
        return self._num


class _Reader(torch.utils.data.Dataset[Any]):
    """Reads the examples of a name, in whatever process."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset, self._seed = dataset, seed

    def __getitems__(self, name: Any) -> Raw:
        keys = list(name.keys)
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(name.epoch)
        with Stream(self._seed, "read", name.epoch, keys):
            read_together = getattr(self._dataset, "__getitems__", None)
            if read_together:
                examples = list(read_together(keys))
            else:
                examples = [self._dataset[key] for key in keys]
            documents: dict[str, str] = {}
            for key, example in zip(keys, examples, strict=True):
                documents |= self._documents(name.epoch, key, example)
        return Raw(name=name, examples=examples, documents=documents)

    def _documents(self, epoch: int, key: Any, example: Any) -> dict[str, str]:
        content = getattr(self._dataset, "content", None)
        if content is not None:
            return {name: of_bytes(data) for name, data in content(key).items()}
        return {f"{epoch}/{key}": of_bytes(b"".join(_pieces(example)))}


class _Collate:
    """Collates what was read, in whatever process."""

    def __init__(self, collate: Callable[[list[Any]], Any], seed: int) -> None:
        self._collate, self._seed = collate, seed

    def __call__(self, raw: Any) -> Micro:
        with Stream(self._seed, "collate", raw.name.epoch, list(raw.name.keys)):
            batch = self._collate(raw.examples)
        return Micro(name=raw.name, documents=raw.documents, batch=batch)


def _pieces(example: Any) -> Iterator[bytes]:
    """The bytes of an example, whatever it is made of; names and lengths are part of them."""
    if isinstance(example, Mapping):
        for name in sorted(example, key=str):
            yield f"{name}:".encode()
            yield from _pieces(example[name])
    elif isinstance(example, bytes):
        yield example
    elif isinstance(example, Tensor):
        yield f"{example.dtype}{list(example.shape)}".encode()
        yield example.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(example, np.ndarray):
        yield f"{example.dtype}{list(example.shape)}".encode()
        yield np.ascontiguousarray(example).tobytes()
    elif isinstance(example, Sequence) and not isinstance(example, str):
        if any(isinstance(item, Tensor | np.ndarray | Mapping) for item in example):
            for item in example:
                yield from _pieces(item)
        else:
            yield json.dumps(list(example), default=repr).encode()
    else:
        yield repr(example).encode()


def _samplers(loader: Any) -> tuple[Any, ...]:
    """The batch sampler and every sampler inside it, accelerate's wrappers included."""
    samplers: list[Any] = []
    waiting = [loader.batch_sampler]
    while waiting:
        sampler = waiting.pop()
        if sampler is None or any(sampler is known for known in samplers):
            continue
        samplers.append(sampler)
        waiting += [getattr(sampler, name, None) for name in ("batch_sampler", "sampler")]
    return tuple(samplers)


def _generators(samplers: Sequence[Any]) -> list[torch.Generator]:
    generators = []
    for sampler in samplers:
        generator = getattr(sampler, "generator", None)
        if isinstance(generator, torch.Generator):
            generators.append(generator)
    return generators
