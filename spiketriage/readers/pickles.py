"""Loads a pickle into inert objects: plain containers and scalars, and a `Stub` for all else.

This module never imports what a pickle names, never calls it, and never lets it take more time or
memory than its size allows.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from spiketriage.errors import CorruptFileError
from spiketriage.readers.inert import SCALARS, InertFunction, Ordered, Stub, stub_class, walk
from spiketriage.readers.limited import cpu_bound, limited
from spiketriage.readers.memory_bound import memory_bound
from spiketriage.readers.pickle_keys import require_plain_keys

__all__ = ["MAX_BYTES", "Unpickled", "load", "load_here", "walk"]

MAX_BYTES = 1 << 30
MAX_GLOBALS = 10_000
_OLD_MODULES = {"__builtin__": "builtins", "copy_reg": "copyreg"}
_MAX_DIMENSIONS = 64  # as in torch and numpy
_MAX_FLAT = 10_000  # integers chosen to collide would cost the square of it
_CPU_S = 1.0
_BYTES_A_CPU_S = 4 << 20  # an honest one takes a tenth of that time: 9 MB of DCP metadata .26 s


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpickled:
    """What a pickle holds, the names that it asked for in first-seen order, and where it ended."""

    value: Any
    globals: tuple[str, ...]
    end: int


@limited
def load(data: bytes, *, where: object) -> Unpickled:
    """The first pickle in `data`, which came from `where`, loaded in the child with limits.

    Raises:
        CorruptFileError: it is no pickle, is damaged, or wants more memory than an honest one.
        EvidenceError: it wants more time, or is nested deeper than any.
    """
    return load_here(data, where=where)


def load_here(
    data: bytes | memoryview,
    *,
    where: object,
    persistent: Callable[[Any], Any] | None = None,
    rebuild: Mapping[str, Callable[..., Any]] | None = None,
) -> Unpickled:
    """The same in this process, for a reader that is in the child already.

    `persistent` turns a persistent id into an object; `rebuild` maps qualified names to inert
    functions of ours.

    Raises:
        CorruptFileError: as for `load`.
    """
    data = bytes(data)
    if len(data) > MAX_BYTES:
        raise CorruptFileError(
            where, "pickle", expected=f"at most {MAX_BYTES} bytes", seen=len(data)
        )
    require_plain_keys(data, where=where)
    # with peek, the C unpickler reads ahead
    stream = io.BufferedReader(io.BytesIO(data), 1 << 16)
    unpickler = _Unpickler(stream, persistent, rebuild or {})
    try:
        with memory_bound(len(data)), cpu_bound(_CPU_S + len(data) / _BYTES_A_CPU_S):
            value = unpickler.load()
    except _WRONG as error:
        seen = type(error).__name__
        if str(error):
            seen += f": {error}"[:200]
        raise CorruptFileError(where, "pickle", expected="an intact pickle", seen=seen) from None
    return Unpickled(value=value, globals=tuple(unpickler.names), end=stream.tell())


def _encoded(text: object, encoding: object = "", *rest: object) -> object:
    if isinstance(text, str) and encoding == "latin1" and not rest:
        return text.encode("latin-1")
    return b""


def _raw(value: object = b"", *rest: object) -> object:
    if isinstance(value, bytes):
        return value
    return _encoded(value, "latin1")


def _reconstructed(cls: object, *rest: object) -> object:
    if isinstance(cls, type) and issubclass(cls, (Stub, Ordered)):
        return cls()
    return Stub()


def _flat(made: type) -> Callable[..., object]:
    """A set of what a list of scalars holds; a `Stub` of anything else.

    What it holds is then cheap to hash and to compare.
    """

    def make(*parts: object) -> object:
        if len(parts) == 1 and isinstance(parts[0], list | tuple):
            items = parts[0]
            if len(items) <= _MAX_FLAT and all(type(item) in SCALARS for item in items):
                return made(items)
        return stub_class(f"builtins.{made.__name__}")(*parts)

    return make


def _complex(*parts: object) -> object:
    if len(parts) == 2 and isinstance(parts[0], float) and isinstance(parts[1], float):
        return complex(parts[0], parts[1])
    return stub_class("builtins.complex")(*parts)


def _size(*parts: object) -> object:
    """A shape: a flat tuple of counts, which is a `Stub` where it is anything else."""
    if len(parts) == 1 and isinstance(parts[0], list | tuple):
        counts = tuple(parts[0])
        if len(counts) <= _MAX_DIMENSIONS and all(type(count) is int for count in counts):
            return counts
    return stub_class("torch.Size")(*parts)


_WRONG = (
    pickle.PickleError,
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    ImportError,
    MemoryError,
    RuntimeError,
    SystemError,
    AssertionError,
)
# What a pickle may call or make that is more than a stub. All else is one: `str`, `int`, `list` and
# their like would do what the pickle says with objects of its choice, as slowly as it chooses.
_ALLOWED: Mapping[str, Any] = {
    "builtins.bytes": InertFunction(_raw),
    "builtins.bytearray": InertFunction(_raw),
    "_codecs.encode": InertFunction(_encoded),
    "copyreg._reconstructor": InertFunction(_reconstructed),
    "collections.OrderedDict": Ordered,
    "torch.Size": InertFunction(_size),
    "builtins.set": InertFunction(_flat(set)),
    "builtins.frozenset": InertFunction(_flat(frozenset)),
    "builtins.complex": InertFunction(_complex),
}


class _Unpickler(pickle.Unpickler):
    def __init__(
        self,
        stream: io.BufferedReader[Any],
        persistent: Callable[[Any], Any] | None,
        rebuild: Mapping[str, Callable[..., Any]],
    ) -> None:
        super().__init__(stream, encoding="latin-1")
        self.names: dict[str, None] = {}
        self._persistent = persistent
        self._known = {
            **_ALLOWED,
            **{name: InertFunction(function) for name, function in rebuild.items()},
        }

    def find_class(self, module: str, name: str, /) -> Any:
        """Something inert by that name; whatever it is, it is not imported."""
        qualified = f"{_OLD_MODULES.get(module, module)}.{name}"
        self.names[qualified] = None
        if len(self.names) > MAX_GLOBALS:
            raise pickle.UnpicklingError(f"more than {MAX_GLOBALS} names")
        known = self._known.get(qualified)
        if known is None:
            return stub_class(qualified)
        return known

    def persistent_load(self, pid: Any) -> Any:
        """What the caller makes of a persistent id."""
        if self._persistent is None:
            raise pickle.UnpicklingError("a persistent id, which a plain pickle does not have")
        return self._persistent(pid)
