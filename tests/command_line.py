"""The command line as tests see it.

What it offers, whether it takes a line, and one real call of it.

It never runs a command inside the test's own process.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer.main

from spiketriage.cli.main import app

ROOT = Path(__file__).parents[1]
PROGRAM = "import sys; sys.argv[0] = 'spiketriage'; from spiketriage.cli.main import run; run()"


def surface() -> list[str]:
    """One line a command: its path, then arguments and options as they are spelled."""
    return [
        " ".join([*path, *map(_spelling, command.params), "-h", "--help"])
        for path, command in commands()
    ]


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with its path, groups before their members."""
    yield from _below(("spiketriage",), typer.main.get_command(app))


def takes(line: str) -> str:
    """Empty when the parser takes this command line; else its complaint."""
    words = shlex.split(line)
    path, command = ("spiketriage",), typer.main.get_command(app)
    rest = words[1:]
    while rest and rest[0] in getattr(command, "commands", {}):
        path, command, rest = (*path, rest[0]), command.commands[rest[0]], rest[1:]
    if rest and not rest[0].startswith("-") and hasattr(command, "commands"):
        return f"no such command: {rest[0]}"
    if "--help" in rest:
        rest.remove("--help")
        return "" if not rest else f"unexpected beside --help: {rest}"
    try:
        command.make_context(" ".join(path), list(rest), resilient_parsing=False)
    except typer.TyperException as error:
        return error.format_message()
    return ""


def call(
    *words: str, cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `spiketriage` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        cwd=cwd,
        env={**environment(), **(env or {})},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def environment() -> dict[str, str]:
    """Return this environment: the project importable, the operator's own settings left out."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SPIKETRIAGE_")}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}


def _below(path: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, member in getattr(command, "commands", {}).items():
        yield from _below((*path, name), member)


def _spelling(param: Any) -> str:
    if param.param_type_name == "argument":
        return str(param.metavar) if param.required else f"[{param.metavar}]"
    return "/".join(sorted(param.opts, key=len)) + ("" if param.is_flag else f" {param.metavar}")
