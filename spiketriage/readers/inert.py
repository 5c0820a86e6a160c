"""The inert objects that a foreign pickle is loaded into, and how a reader walks them.

This module never loads a pickle, and holds no class that does anything when it is made, hashed or
shown.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from types import MappingProxyType, NoneType
from typing import Any, ClassVar

MAX_NODES = 2_000_000
MAX_DEPTH = 1000
MAX_AGAIN = 200_000  # of what a pickle shares: sixty lists can make 2^60 leaves
_NOTHING: Mapping[Any, Any] = MappingProxyType({})
# all that a load makes; isinstance with the abstract class is slow
_MAPPINGS = (dict, MappingProxyType)
_MAPPINGS_OR_NONE = (*_MAPPINGS, NoneType)
SCALARS = frozenset((str, int, float, bool, bytes, NoneType))


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

    def reduced(self) -> tuple[Any, ...]:
        """How it is written for another process of ours: its class by name, and all that it holds.

        What it holds is set last, for it may hold itself.
        """
        held = (self.args, dict(self.kwargs), self.state, self.items, dict(self.entries))
        return new_stub, (self.qualified,), held, None, None, fill_stub


class Ordered(dict[Any, Any]):
    """An OrderedDict or a dict subclass, without the attributes that it may have had."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        pass


class InertFunction:
    """A function as a pickle may hold it: to be called, but not to be given other defaults."""

    __slots__ = ("_function",)
    _function: Callable[..., Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        object.__setattr__(self, "_function", function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What our function makes of it."""
        return self._function(*args, **kwargs)

    def __setattr__(self, name: str, value: object) -> None:
        raise pickle.UnpicklingError(f"the pickle sets {name!r} of a function")

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("the pickle gives a function a state")


@lru_cache(maxsize=4096)
def stub_class(qualified: str) -> type[Stub]:
    """The inert stand-in for the class of that name."""
    return type("Stub", (Stub,), {"__slots__": (), "qualified": qualified})


def new_stub(qualified: str) -> Stub:
    """An inert object of that class, which holds nothing yet."""
    return stub_class(qualified)()


def fill_stub(stub: Stub, held: tuple[Any, ...]) -> None:
    """Give a new stub what another one holds."""
    stub.args, kwargs, stub.state, stub.items, entries = held
    stub.kwargs, stub.entries = kwargs or _NOTHING, entries or _NOTHING


MAKERS = (new_stub, fill_stub, stub_class, Ordered)  # make what a load gives


_CONTAINERS = (*_MAPPINGS, list, tuple, Stub)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A value that holds no others, and the way to it; `...` stands for what was not walked."""

    path: tuple[str, ...]
    value: Any


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
            yield plain_text(key), item
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


def plain_text(value: object) -> str:
    """A key or a value as a person would write it; what is no scalar by its type alone.

    Never by what it holds: sixty lists can hold 2^60 items.
    """
    if isinstance(value, str):
        if value.isascii():
            return value
        return value.encode("utf-8", "backslashreplace").decode()  # lone surrogates print badly
    if isinstance(value, int) and -(1 << 64) < value < 1 << 64:
        return str(value)  # which the language refuses for a huge one
    if value is None or isinstance(value, float):
        return str(value)
    return f"<{type(value).__name__}>"


def walk(
    value: Any, *, max_nodes: int = MAX_NODES, whole: Callable[[Any], bool] = lambda value: False
) -> Iterator[Leaf]:
    """Every leaf below `value`, depth first in stored order; what is `whole` is a leaf too.

    A cycle, what lies deeper than `MAX_DEPTH`, a container that is met again after `MAX_AGAIN`
    nodes that were, and all that follows `max_nodes` are one leaf `...` each.
    """
    path: list[str] = []
    opened: list[int] = []
    above: set[int] = set()
    met: set[int] = set()
    num_again = 0
    again_depth = 0  # how deep the outermost container lies that was met before; 0 outside of one
    stack: list[Iterator[tuple[str, Any]]] = [iter((("", value),))]
    for _ in range(max_nodes):
        pair = next(stack[-1], None)
        while pair is None:
            stack.pop()
            if not stack:
                return
            above.discard(opened.pop())
            path.pop()
            if len(path) < again_depth:
                again_depth = 0
            pair = next(stack[-1], None)
        key, item = pair
        num_again += again_depth > 0
        if type(item) not in SCALARS:
            is_again = id(item) in met
            is_closed = (
                id(item) in above or len(path) > MAX_DEPTH or (is_again and num_again >= MAX_AGAIN)
            )
            if not is_closed and not whole(item):
                below = children(item)
                first = next(below, None)
                if first is not None:
                    stack.append(chain((first,), below))
                    path.append(key)
                    opened.append(id(item))
                    above.add(id(item))
                    met.add(id(item))
                    if is_again and not again_depth:
                        again_depth = len(path)
                    continue
            elif is_closed and isinstance(item, _CONTAINERS):
                item = ...
        yield Leaf(path=(*path[1:], key) if path else (), value=item)
    yield Leaf(path=tuple(path[1:]), value=...)
