"""Calls in the source of somebody's trainer, by the full name of what is called.

This module reads syntax trees and never imports or runs the source; what is computed at run time
it does not see.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spiketriage.errors import EvidenceError, RefusedError
from spiketriage.readers.config_file import MAX_BYTES, parsed_source
from spiketriage.readers.json_file import read_bytes

MAX_FILES = 200
_BRANCHES = (ast.If, ast.IfExp, ast.While, ast.Try, ast.Match, ast.BoolOp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call: the dotted name as imports resolve it, and its constant arguments.

    An argument whose value is computed is there with None; positional ones are under their place,
    `"0"`, `"1"`, …. A call is conditional where it stands below an `if`, a loop or the like.
    """

    name: str
    is_conditional: bool
    arguments: Mapping[str, object]
    path: Path
    line: int


def read_calls(module: str, roots: Sequence[Path]) -> tuple[tuple[Path, ...], tuple[Call, ...]]:
    """The files of `module` and of what it imports below `roots`, and their calls.

    Raises:
        RefusedError: the module lies below none of the roots. CorruptFileError: a file is not
        Python.
        EvidenceError: a file cannot be read.
    """
    first = _located(module, roots)
    if first is None:
        listed = ", ".join(str(root) for root in roots)
        raise RefusedError(
            f"no file of module {module} in {listed}",
            hint="PYTHONPATH=FOLDER spiketriage defenses MODULE:FACTORY",
        )
    waiting, seen, calls = [(module, first)], {first: None}, []
    while waiting:
        name, path = waiting.pop(0)
        data = read_bytes(path)
        if len(data) > MAX_BYTES:
            raise EvidenceError(f"{path}: {len(data)} bytes are no source code")
        tree = parsed_source(path, data)
        names, imported = _imports(tree, name, is_package=path.name == "__init__.py")
        calls += _Calls(names, path).of(tree)
        for other in imported:
            file = _located(other, roots)
            if file is not None and file not in seen and len(seen) < MAX_FILES:
                seen[file] = None
                waiting.append((other, file))
    return tuple(seen), tuple(calls)


def _located(module: str, roots: Sequence[Path]) -> Path | None:
    parts = module.split(".")
    if parts[0] == "spiketriage":  # ours: known by name
        return None
    for root in roots:
        for path in (
            root.joinpath(*parts).with_suffix(".py"),
            root.joinpath(*parts, "__init__.py"),
        ):
            if path.is_file():
                return path
    return None


def _imports(
    tree: ast.Module, module: str, *, is_package: bool
) -> tuple[dict[str, str], list[str]]:
    """Full names by local name, and the modules that may be files here."""
    names: dict[str, str] = {}
    imported: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                imported.append(alias.name)
                if alias.asname:
                    names[alias.asname] = alias.name
                else:
                    package = alias.name.partition(".")[0]
                    names[package] = package
        elif isinstance(node, ast.ImportFrom):
            source = _absolute(node, module, is_package=is_package)
            imported.append(source)
            for alias in node.names:
                names[alias.asname or alias.name] = f"{source}.{alias.name}"
                imported.append(f"{source}.{alias.name}")
    return names, imported


def _absolute(node: ast.ImportFrom, module: str, *, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    kept = parts[: len(parts) - node.level + is_package]
    if node.module:
        kept.append(node.module)
    return ".".join(kept)


class _Calls(ast.NodeVisitor):
    """One walk through a file, which knows whether it is under a condition."""

    def __init__(self, names: dict[str, str], path: Path) -> None:
        self._names, self._path = names, path
        self._depth = 0
        self._calls: list[Call] = []

    def of(self, tree: ast.Module) -> list[Call]:
        """Every call of the file."""
        try:
            self.visit(tree)
        except RecursionError as error:
            raise EvidenceError(
                f"{self._path}: its expressions are nested too deeply to be read"
            ) from error
        return self._calls

    def generic_visit(self, node: ast.AST) -> None:
        """Go on below the node."""
        is_branch = isinstance(node, _BRANCHES)
        self._depth += is_branch
        super().generic_visit(node)
        self._depth -= is_branch

    def visit_Call(self, node: ast.Call) -> None:
        """Keep the call, and go on in its arguments."""
        name = ".".join(reversed(list(_dotted(node.func))))
        if name:
            first, _, rest = name.partition(".")
            full = self._names.get(first, first)
            if rest:
                full = f"{full}.{rest}"
            call = Call(
                name=full,
                is_conditional=self._depth > 0,
                arguments=_arguments(node),
                path=self._path,
                line=node.lineno,
            )
            self._calls.append(call)
        self.generic_visit(node)


def _arguments(node: ast.Call) -> dict[str, object]:
    """The constants by keyword or position; None for what is computed."""
    given: dict[str, ast.expr] = {}
    for position, value in enumerate(node.args):
        given[str(position)] = value
    for keyword in node.keywords:
        if keyword.arg:
            given[keyword.arg] = keyword.value
    arguments: dict[str, object] = {}
    for name, value in given.items():
        arguments[name] = value.value if isinstance(value, ast.Constant) else None
    return arguments


def _dotted(node: ast.expr) -> Iterator[str]:
    """The parts of `a.b.c`, last first; of `self.x.f` too; nothing for what is computed."""
    while isinstance(node, ast.Attribute):
        yield node.attr
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id
