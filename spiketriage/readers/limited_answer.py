"""What the child with limits answers: records of ours, plain values and inert objects, as bytes.

The desk decodes them with an allow-list, so that even a child that a file took over could not make
it call anything. This module never encodes a function, and never decodes into a class that is no
record.
"""

from __future__ import annotations

import dataclasses
import enum
import io
import pickle
import sys
from collections.abc import Callable
from pathlib import Path, PosixPath
from types import MappingProxyType
from typing import Any

from spiketriage import errors
from spiketriage.errors import SpiketriageError
from spiketriage.readers import inert

_NUMPY = {
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy.core.numeric", "_frombuffer"),
    ("numpy._core.numeric", "_frombuffer"),
}
_PLAIN = (dict, list, tuple, set, frozenset, int, float, bool, complex, str, bytes, range)
_PACKAGE = "spiketriage."


def encoded(value: Any) -> bytes:
    """The answer `value`."""
    return _dumped(("value", value))


def encoded_error(error: SpiketriageError) -> bytes:
    """An error of ours, which the desk raises."""
    kept = {key: word for key, word in vars(error).items() if isinstance(word, str)}
    return _dumped(("error", type(error).__name__, kept))


def encoded_bug(report: str) -> bytes:
    """A traceback, which the desk raises as a bug of ours."""
    return _dumped(("bug", report))


def decoded(reply: bytes) -> Any:
    """The value of an answer.

    Raises:
        SpiketriageError: the error that it holds.
    """
    kind, *rest = _Decoder(io.BytesIO(reply)).load()
    if kind == "value":
        return rest[0]
    if kind == "error":
        raise _error(*rest)
    raise RuntimeError(f"a reader failed in its child process:\n{rest[0]}")


def _error(name: str, kept: dict[str, str]) -> SpiketriageError:
    kind = getattr(errors, name)
    assert issubclass(kind, SpiketriageError)
    error: SpiketriageError = kind.__new__(kind)
    SpiketriageError.__init__(error, kept["message"], hint=kept["hint"])
    vars(error).update(kept)
    return error


def _dumped(answer: tuple[Any, ...]) -> bytes:
    stream = io.BytesIO()
    _Encoder(stream, protocol=5).dump(answer)
    return stream.getvalue()


class _Encoder(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """How the inert objects of a foreign pickle are written: a stub's class by its name."""
        if isinstance(value, inert.Stub):
            return value.reduced()
        if isinstance(value, type):
            if issubclass(value, inert.Stub):
                return inert.stub_class, (value.qualified,)
            return NotImplemented
        if isinstance(value, MappingProxyType):
            return dict, (dict(value),)
        if isinstance(value, inert.InertFunction):
            return inert.stub_class, ("function",)
        return NotImplemented


class _Decoder(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        """A record of ours that this process has loaded, or one of the few plain types."""
        if (module, name) in _NUMPY:
            return super().find_class(module, name)
        known = _KNOWN.get(f"{module}.{name}")
        if known is not None:
            return known
        kind = getattr(sys.modules.get(module), name, None)
        if module.startswith(_PACKAGE) and _is_record(kind):
            return kind
        raise pickle.UnpicklingError(f"an answer of {module}.{name}, which is no record")


def _is_record(kind: object) -> bool:
    if not isinstance(kind, type):
        return False
    return dataclasses.is_dataclass(kind) or issubclass(kind, enum.Enum)


_KNOWN: dict[str, Callable[..., Any]] = {
    **{f"builtins.{plain.__name__}": plain for plain in _PLAIN},
    **{f"{made.__module__}.{made.__qualname__}": made for made in inert.MAKERS},
    "pathlib.PosixPath": PosixPath,
    "pathlib._local.PosixPath": PosixPath,
    "pathlib.Path": Path,
}
