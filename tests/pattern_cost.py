"""Holds every pattern of the package against long hostile strings, a few seconds of CPU for each.

Started by the test of the patterns as a process of its own; it dies of SIGXCPU on a pattern whose
cost is not linear, and the name that it printed last is that pattern's. It never reads a file of
somebody's run.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import pkgutil
import re
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import spiketriage

NUM_CHARS = 50_000
LIMIT_S = 3  # a linear pattern takes a tenth of it, a quadratic one of this length twice
PIECES = (
    "a", "1", " ", "\t", "\n", "_", ".", "/", "-", "=", ":", "{", "[", "(", "'", '"', "<", "0.",
    ", ", "a.", "a=", "[a", "a: ", " | ", "\x1b[", "A", "\\", "é",
)  # fmt: skip
_WORDS = re.compile(r"[A-Za-z][A-Za-z ,_=:'\"-]{1,20}")


def patterns() -> dict[tuple[str | bytes, int], str]:
    """Every pattern that a module of the package holds or spells, and where."""
    found: dict[tuple[str | bytes, int], str] = {}
    for info in pkgutil.walk_packages(spiketriage.__path__, "spiketriage."):
        if info.name.endswith("__main__"):
            continue
        module = importlib.import_module(info.name)
        for name, value in vars(module).items():
            for pattern in _held(value, depth=0):
                found.setdefault((pattern.pattern, pattern.flags), f"{info.name}.{name}")
        path = Path(str(module.__file__))
        for node in ast.walk(ast.parse(path.read_bytes())):
            spelled = _spelled(node)
            if spelled is not None:
                found.setdefault(
                    (spelled.pattern, spelled.flags), f"{info.name}, a call of re: {spelled!r}"
                )
    return found


def _held(value: Any, *, depth: int) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif depth > 4:
        return
    elif isinstance(value, dict):
        yield from _held(list(value.values()), depth=depth + 1)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _held(item, depth=depth + 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _held(getattr(value, field.name, None), depth=depth + 1)


def _spelled(node: ast.AST) -> re.Pattern[Any] | None:
    """The pattern of a call like `re.search("…", text)`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    module = node.func.value
    if not isinstance(module, ast.Name) or module.id != "re" or node.func.attr == "compile":
        return None
    if node.args and isinstance(node.args[0], ast.Constant):
        return re.compile(node.args[0].value)
    return None


def hostile(pattern: str | bytes) -> Iterator[str]:
    """Long strings that almost match: a piece again and again, and an end that spoils it."""
    text = pattern if isinstance(pattern, str) else pattern.decode("latin-1")
    for piece in (*PIECES, *_WORDS.findall(text)[:6]):
        yield piece * (NUM_CHARS // len(piece)) + "!\0"


def main() -> None:
    """Try them all.

    Output has no buffer: the last line is there when the process dies.
    """
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for (pattern, flags), name in patterns().items():
        print(name, flush=True)
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + LIMIT_S, hard))
        compiled = re.compile(pattern, flags)
        for text in hostile(pattern):
            subject: Any = text if isinstance(pattern, str) else text.encode()
            compiled.fullmatch(subject)
            for _ in compiled.finditer(subject):
                pass


if __name__ == "__main__":
    main()
