"""A training configuration as flat settings: JSON, TOML, or a Python file of constants.

This module never imports or runs a configuration, and follows no reference from one file to
another.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spiketriage.errors import CorruptFileError, EvidenceError, RefusedError
from spiketriage.readers.json_file import parse_object
from spiketriage.readers.look import look_at_file

MAX_BYTES = 16_000_000  # a configuration above this is data
MAX_SETTINGS = 100_000
MAX_DEPTH = 64
_YAML = (".yaml", ".yml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting: its keys from the outside in, its value, and the file or record that states it.

    A value is what JSON can hold. A section is a setting too, with a mapping as its value.
    """

    keys: tuple[str, ...]
    value: Any
    where: str

    @property
    def name(self) -> str:
        """The dotted name, as a person would look for it."""
        return ".".join(self.keys)


def read_config(path: Path, *, copy: Path | None = None) -> tuple[Setting, ...]:
    """The settings in the file `path`, or in a `copy` of it under another name, in its order.

    Raises:
        EvidenceError: it is missing, too large or cannot be read.
        CorruptFileError: it is not what its suffix says.
        RefusedError: it is YAML, which needs a library that is none of ours.
    """
    kept = copy or path
    seen = look_at_file(kept)
    if path.suffix.lower() in _YAML:
        raise RefusedError(
            f"{path}: YAML is not read here: convert it to JSON first", hint=_conversion(path)
        )
    if seen.size_bytes > MAX_BYTES:
        raise CorruptFileError(
            path,
            "size",
            expected=f"a configuration of at most {MAX_BYTES} bytes",
            seen=seen.size_bytes,
        )
    try:
        data = kept.read_bytes()
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read: {error.strerror or error}") from error
    return flattened(_parsed(path, data), path.name)


def flattened(settings: Mapping[str, Any], where: str) -> tuple[Setting, ...]:
    """Every setting and every section of `settings`, within bounds that no real one comes near."""
    flat: list[Setting] = []
    waiting: list[tuple[tuple[str, ...], Any]] = [((), settings)]
    while waiting and len(flat) < MAX_SETTINGS:
        keys, value = waiting.pop()
        if keys:
            flat.append(Setting(keys=keys, value=value, where=where))
        if len(keys) < MAX_DEPTH:
            inner = [((*keys, str(key)), below) for key, below in _below(value)]
            waiting += reversed(inner)
    return tuple(flat)


def _below(value: Any) -> Iterable[tuple[object, Any]]:
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, list):
        return [(number, inner) for number, inner in enumerate(value) if isinstance(inner, Mapping)]
    return ()


def _parsed(path: Path, data: bytes) -> dict[str, Any]:
    suffix = path.suffix.lower()
    if suffix == ".toml":
        return _toml(path, data)
    if suffix == ".py":
        return dict(_constants(parsed_source(path, data)))
    return parse_object(path, data)


def _toml(path: Path, data: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        raise CorruptFileError(
            path, f"byte {error.start}", expected="UTF-8 text", seen=error.reason
        ) from error
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(path, "content", expected="TOML", seen=error) from error


def parsed_source(path: Path, data: bytes) -> ast.Module:
    """The syntax tree of a Python file, which is not run.

    Raises:
        CorruptFileError: it is not Python.
    """
    try:
        return ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CorruptFileError(path, "content", expected="Python source", seen=error) from error


def _constants(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """`name = constant` at the top level, as nanoGPT's configurations are written."""
    for node in tree.body:
        if (
            isinstance(node, ast.Assign)
            and len(node.targets) == 1
            and isinstance(node.targets[0], ast.Name)
        ):
            try:
                yield node.targets[0].id, ast.literal_eval(node.value)
            except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                continue  # computed: what it is at run time is not known


def _conversion(path: Path) -> str:
    program = (
        "import json, sys, yaml; json.dump(yaml.safe_load(sys.stdin), sys.stdout, default=str)"
    )
    return f"python3 -c '{program}' < {path} > {path.with_suffix('.json')}"
