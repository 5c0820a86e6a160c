"""Loads a pickle into inert objects: plain containers and scalars, and a `Stub` for all else.

This module never imports what a pickle names, never calls it, and never lets it take more memory
than its size allows.
"""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from types import MappingProxyType, NoneType
from typing import Any, ClassVar

from spiketriage.errors import CorruptFileError, EvidenceError
from spiketriage.readers.memory_bound import memory_bound

MAX_BYTES = 1 << 30
MAX_GLOBALS = 10_000
MAX_NODES = 2_000_000
MAX_DEPTH = 1000
MAX_TUPLES = 8_000_000  # what a stack of 1.5 GB can hash when all of them are nested
_STACK_BYTES_A_TUPLE = 192  # measured: about 100 on x86-64
_FEW_TUPLES = 10_000
_OLD_MODULES = {"__builtin__": "builtins", "copy_reg": "copyreg"}
_NOTHING: Mapping[Any, Any] = MappingProxyType({})
# all that a load makes; isinstance with the abstract class is slow
_MAPPINGS = (dict, MappingProxyType)
_MAPPINGS_OR_NONE = (*_MAPPINGS, NoneType)
_SCALARS = frozenset((str, int, float, bool, bytes, NoneType))
_LOCK = threading.Lock()


class Stub:
    """An inert stand-in for an object of a class that was never imported."""

    __slots__ = ("args", "entries", "items", "kwargs", "state")
    qualified: ClassVar[str] = ""
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    state: Any
    items: Sequence[Any]
    entries: Mapping[Any, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Stub:
        """Keep what the class would have been called with."""
        self = object.__new__(cls)
        self.args = args
        self.kwargs = kwargs or _NOTHING
        self.state = None
        self.items = ()
        self.entries = _NOTHING
        return self

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        if self.entries is _NOTHING:
            self.entries = {}
        self.entries[key] = value  # type: ignore[index]  # ours since the line above

    def append(self, item: Any) -> None:
        """Take one item of a list or set subclass."""
        self.extend((item,))

    add = append

    def extend(self, items: Sequence[Any]) -> None:
        """Take items of a list subclass."""
        if not self.items:
            self.items = []
        self.items.extend(items)  # type: ignore[attr-defined]  # ours since the line above

    def __repr__(self) -> str:
        return f"<{self.qualified}>"


_CONTAINERS = (*_MAPPINGS, list, tuple, Stub)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpickled:
    """What a pickle holds, the names that it asked for in first-seen order, and where it ended."""

    value: Any
    globals: tuple[str, ...]
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A value that holds no others, and the way to it; `...` stands for what was not walked."""

    path: tuple[str, ...]
    value: Any


def load(
    data: bytes | memoryview,
    *,
    where: object,
    persistent: Callable[[Any], Any] | None = None,
    rebuild: Mapping[str, Callable[..., Any]] | None = None,
) -> Unpickled:
    """The first pickle in `data`, which came from `where`.

    `persistent` turns a persistent id into an object; `rebuild` maps qualified names to inert
    functions of ours.

    Raises:
        CorruptFileError: it is no pickle, is damaged, or wants more than an honest one of its size
        would.
    """
    data = bytes(data)
    if len(data) > MAX_BYTES:
        raise CorruptFileError(
            where, "pickle", expected=f"at most {MAX_BYTES} bytes", seen=len(data)
        )
    num_tuples = sum(map(data.count, (b"\x85", b"\x86", b"\x87", b"t")))  # an upper bound
    if num_tuples > MAX_TUPLES:
        raise CorruptFileError(
            where, "pickle", expected=f"at most {MAX_TUPLES} tuples", seen=num_tuples
        )
    job = _Job(data, persistent, rebuild or {})
    stack_bytes = num_tuples * _STACK_BYTES_A_TUPLE
    with _LOCK, memory_bound(len(data), stack_bytes):
        # Hashing nested tuples recurses in C without a check: the stack must be as deep as they
        # could be.
        if num_tuples > _FEW_TUPLES:
            job.run_with_stack(stack_bytes)
        else:
            job.run()
    if job.error is not None:
        error, job.error = job.error, None
        if isinstance(error, EvidenceError):
            raise error
        seen = type(error).__name__
        if str(error):
            seen += f": {error}"[:200]
        raise CorruptFileError(where, "pickle", expected="an intact pickle", seen=seen) from None
    return Unpickled(value=job.value, globals=tuple(job.names), end=job.end)


def attribute(value: object, name: str, default: Any = None) -> Any:
    """What `name` is in a mapping, or in a stub's state: a dict, or a pair of dict and slots."""
    if isinstance(value, Stub):
        parts = value.state if type(value.state) is tuple else (value.state,)
        for part in parts:
            if isinstance(part, _MAPPINGS) and name in part:
                return part[name]
        return default
    if isinstance(value, _MAPPINGS):
        return value.get(name, default)
    return default


def children(value: Any) -> Iterator[tuple[str, Any]]:
    """The keys and values right below a container or a stub; nothing for everything else."""
    if isinstance(value, _MAPPINGS):
        for key, item in value.items():
            yield key_text(key), item
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield str(number), item
    elif isinstance(value, Stub):
        for part in _parts_of_state(value.state):
            if isinstance(part, _MAPPINGS):
                yield from children(part)
            elif part is not None:
                yield "state", part
        yield from children(value.entries)
        yield from children(value.items)


def _parts_of_state(state: Any) -> tuple[Any, ...]:
    """The dict and the slots of an object that has both, else the state as a whole."""
    if type(state) is tuple and len(state) == 2:
        first, second = state
        if isinstance(first, _MAPPINGS_OR_NONE) and isinstance(second, _MAPPINGS_OR_NONE):
            return state
    return (state,)


def key_text(key: object) -> str:
    """A mapping's key as a person would write it; a key that is no scalar by its type alone."""
    if isinstance(key, str):
        if key.isascii():
            return key
        return key.encode("utf-8", "backslashreplace").decode()  # lone surrogates print badly
    if isinstance(key, int) and -(1 << 64) < key < 1 << 64:
        return str(key)  # which the language refuses for a huge one
    if isinstance(key, float):
        return str(key)
    return f"<{type(key).__name__}>"


def walk(
    value: Any, *, max_nodes: int = MAX_NODES, whole: Callable[[Any], bool] = lambda value: False
) -> Iterator[Leaf]:
    """Every leaf below `value`, depth first in stored order; what is `whole` is a leaf too.

    A cycle, what lies deeper than `MAX_DEPTH`, and all that follows `max_nodes` are one leaf `...`
    each.
    """
    path: list[str] = []
    opened: list[int] = []
    above: set[int] = set()
    stack: list[Iterator[tuple[str, Any]]] = [iter((("", value),))]
    for _ in range(max_nodes):
        pair = next(stack[-1], None)
        while pair is None:
            stack.pop()
            if not stack:
                return
            above.discard(opened.pop())
            path.pop()
            pair = next(stack[-1], None)
        key, item = pair
        if type(item) not in _SCALARS:
            is_closed = id(item) in above or len(path) > MAX_DEPTH
            if not is_closed and not whole(item):
                below = children(item)
                first = next(below, None)
                if first is not None:
                    stack.append(chain((first,), below))
                    path.append(key)
                    opened.append(id(item))
                    above.add(id(item))
                    continue
            elif is_closed and isinstance(item, _CONTAINERS):
                item = ...
        yield Leaf(path=(*path[1:], key) if path else (), value=item)
    yield Leaf(path=tuple(path[1:]), value=...)


class _Ordered(dict[Any, Any]):
    """An OrderedDict or a dict subclass, without the attributes that it may have had."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        pass


class _Call:
    """A function as a pickle may hold it: to be called, but not to be given other defaults."""

    __slots__ = ("_function",)
    _function: Callable[..., Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        object.__setattr__(self, "_function", function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __setattr__(self, name: str, value: object) -> None:
        raise pickle.UnpicklingError(f"the pickle sets {name!r} of a function")

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("the pickle gives a function a state")


def _encoded(text: object, encoding: object = "", *rest: object) -> object:
    if isinstance(text, str) and encoding == "latin1" and not rest:
        return text.encode("latin-1")
    return b""


def _raw(value: object = b"", *rest: object) -> object:
    if isinstance(value, bytes):
        return value
    return _encoded(value, "latin1")


def _reconstructed(cls: object, *rest: object) -> object:
    if isinstance(cls, type) and issubclass(cls, (Stub, _Ordered)):
        return cls()
    return Stub()


@lru_cache(maxsize=4096)
def _stub_class(qualified: str) -> type[Stub]:
    return type("Stub", (Stub,), {"__slots__": (), "qualified": qualified})


_PLAIN = (dict, list, tuple, set, frozenset, int, float, bool, complex, str)
_ALLOWED: Mapping[str, Any] = {
    **{f"builtins.{plain.__name__}": plain for plain in _PLAIN},
    "builtins.bytes": _Call(_raw),
    "builtins.bytearray": _Call(_raw),
    "_codecs.encode": _Call(_encoded),
    "copyreg._reconstructor": _Call(_reconstructed),
    "collections.OrderedDict": _Ordered,
    "torch.Size": tuple,
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, job: _Job, stream: io.BufferedReader[Any]) -> None:
        super().__init__(stream, encoding="latin-1")
        self._job = job

    def find_class(self, module: str, name: str, /) -> Any:
        """Something inert by that name; whatever it is, it is not imported."""
        names = self._job.names
        qualified = f"{_OLD_MODULES.get(module, module)}.{name}"
        names[qualified] = None
        if len(names) > MAX_GLOBALS:
            raise pickle.UnpicklingError(f"more than {MAX_GLOBALS} names")
        known = self._job.rebuild.get(qualified)
        if known is not None:
            return known
        allowed = _ALLOWED.get(qualified)
        if allowed is None:
            return _stub_class(qualified)
        return allowed

    def persistent_load(self, pid: Any) -> Any:
        """What the caller makes of a persistent id."""
        if self._job.persistent is None:
            raise pickle.UnpicklingError("a persistent id, which a plain pickle does not have")
        return self._job.persistent(pid)


class _Job:
    """One load, which may run in a thread of its own."""

    def __init__(
        self,
        data: bytes,
        persistent: Callable[[Any], Any] | None,
        rebuild: Mapping[str, Callable[..., Any]],
    ) -> None:
        self._data = data
        self.persistent = persistent
        self.rebuild = {name: _Call(function) for name, function in rebuild.items()}
        self.names: dict[str, None] = {}
        self.value: Any = None
        self.end = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        """Load; what goes wrong is kept in `error`."""
        try:
            # with peek, the C unpickler reads ahead
            stream = io.BufferedReader(io.BytesIO(self._data), 1 << 16)
            self.value = _Unpickler(self, stream).load()
            self.end = stream.tell()
        except (
            pickle.PickleError,
            EOFError,
            ValueError,
            TypeError,
            LookupError,
            AttributeError,
        ) as error:
            self.error = error.with_traceback(None)
        except (
            ArithmeticError,
            ImportError,
            MemoryError,
            RuntimeError,
            SystemError,
            AssertionError,
        ) as error:
            self.error = error.with_traceback(None)
        except EvidenceError as error:
            self.error = error

    def run_with_stack(self, stack_bytes: int) -> None:
        """Load in a thread whose stack holds `stack_bytes` more than usual."""
        before = threading.stack_size((8 << 20) + -(-stack_bytes // 4096) * 4096)
        try:
            thread = threading.Thread(target=self.run, name="unpickle")
            thread.start()
        except (RuntimeError, MemoryError) as error:
            self.error = error
            return
        finally:
            threading.stack_size(before)
        thread.join()
