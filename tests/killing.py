"""What must hold after a command was killed, and the process that starts and kills commands.

It never repairs an incident: whoever comes next must find it as the killed command left it.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from command_line import ROOT
from rehearsed import clean_environment

from spiketriage.incident import database, store
from spiketriage.incident.audit import audit
from spiketriage.incident.rows import TABLES, Row
from spiketriage.tools import verify

MARK = "TORCH_TEST_KILL_MARK"  # of the names that children inherit
Rows = Mapping[str, list[Row]]
# What differs between two runs of one command: its place in the chain, the moment, and this
# machine's own state.
OF_THE_CHAIN = ("number", "command", "digest")
OF_THE_MOMENT = ("frozen_at", "host.json", "host")


class Child:
    """The process of `tests/command_child.py`."""

    def __init__(self, folder: Path) -> None:
        self.mark = str(folder)
        self.log = folder / "child.log"
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "command_child.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**clean_environment(), MARK: self.mark, "SPIKETRIAGE_QUIET": "1"},
        )

    def run(self, *words: str, **how: Any) -> dict[str, Any]:
        """Run a command line to its end, or kill it at an event or after a while."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"words": words, "log": str(self.log), **how}) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()


def recorded(run: Path) -> Rows:
    """Every row of every table, of the run's only incident; nothing before there is one."""
    folder = store.incidents_folder(run, None)
    if not folder.is_dir() or not any(path.name[0] != "." for path in folder.iterdir()):
        return {}
    incident = store.find(run, incidents=None, wanted=None)
    with database.reading(incident.folder) as connection:
        rows = {}
        for table in ("journal", *TABLES):
            rows[table] = database.select(connection, f"SELECT * FROM {table} ORDER BY number")
    return rows


def quiet_rows(run: Path) -> dict[tuple[str, str], list[str]]:
    """What each step added to each table when nobody killed it, by step and table."""
    rows = recorded(run)
    added: dict[tuple[str, str], list[str]] = {}
    for row in rows["journal"]:
        for table in TABLES:
            step = shlex.split(row["argv"])[1]
            added[step, table] = _added_by(rows, table, row["number"])
    return added


def broken_promises(
    run: Path, before: Rows, quiet: Mapping[tuple[str, str], list[str]]
) -> tuple[str, list[str]]:
    """The verdict of `verify` on the run's incident, and a sentence for everything that was lost."""
    after = recorded(run)
    if not after:
        return "none yet", ["the incident is gone"] if before else []
    sentences = []
    for table, rows in before.items():
        if after[table][: len(rows)] != rows:
            sentences.append(f"{table}: rows that were there before are gone or others")
    incident = store.find(run, incidents=None, wanted=None)
    sentences += audit(incident)
    sentences += _beyond_the_quiet(after, quiet)
    result = verify.run(run, incidents=None, incident=None, argv=["spiketriage", "verify"])
    sentences += result.data["problems"]
    return result.verdict, sentences


def _beyond_the_quiet(rows: Rows, quiet: Mapping[tuple[str, str], list[str]]) -> list[str]:
    """What a command added that is no beginning of what one of the quiet commands adds."""
    sentences = []
    commands = {row["command"] for table in TABLES for row in rows[table]}
    for command in commands:
        added = {table: _added_by(rows, table, command) for table in TABLES}
        if not any(_begins(added, quiet, step) for step, _ in quiet):
            sentences.append(f"command {command}: its rows are no beginning of any quiet command's")
    return sentences


def _begins(
    added: Mapping[str, list[str]], quiet: Mapping[tuple[str, str], list[str]], step: str
) -> bool:
    return all(rows == quiet[step, table][: len(rows)] for table, rows in added.items())


def _added_by(rows: Rows, table: str, command: int) -> list[str]:
    """The rows that one command added to a table, as two runs of it have them in common."""
    result = []
    for row in rows[table]:
        if row["command"] == command:
            result.append(_in_common(table, row))
    return result


def _in_common(table: str, row: Row) -> str:
    values = {name: value for name, value in row.items() if name not in OF_THE_CHAIN}
    values.pop("basis", None)  # a digest of other rows
    if table == "files":  # a report tells its own commands, and the bag seals this moment's host
        values.pop("sha256")
    name = str(values.get("key") or values.get("path") or "")
    if name in OF_THE_MOMENT or values.get("kind") == "host":
        values = {"name": name}
    return repr(values)
