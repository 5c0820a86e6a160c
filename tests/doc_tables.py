"""The tables in docs/ that are made from the code, so that a page cannot say what the code does not.

It never writes a page: `test_docs.py` compares, and rewrites when it is asked to.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable

from command_line import ROOT

from spiketriage import errors
from spiketriage.diagnosis.causes import CAUSES
from spiketriage.diagnosis.checks import CHECKS
from spiketriage.readers.discover import kinds
from spiketriage.train.stabilizers import STABILIZERS
from spiketriage.wire import chain

# Codes that no error class carries: how a command ends that raised nothing, was stopped, or is broken.
OTHER_CODES = {
    0: "done; what was asked holds",
    1: "ran, and found something against",
    5: "the measurement is valid but does not decide",
    70: "a bug: the traceback is kept in a file whose path is printed",
    130: "interrupted; the same command goes on",
    143: "terminated; the same command goes on",
}
TABLE = re.compile(r"CREATE TABLE (\w+) \((.*?)\);", re.DOTALL)
COLUMN = re.compile(r'\s*"?(\w+)"? [A-Z]')
COMMON_COLUMNS = ("number", "command", "nonfinite", "digest")


def formats() -> str:
    """Every format that a reader claims, in the order of asking."""
    rows = []
    for kind, members in kinds().items():
        for member in members:
            rows.append((kind, member.NAME, member.TELLS, member.CANNOT))
    return _table(("kind", "format", "tells", "cannot tell"), rows)


def exit_codes() -> str:
    """Every exit code with the first sentence of the errors that end so."""
    meanings = {code: [words] for code, words in OTHER_CODES.items()}
    for kind in subclasses(errors.SpiketriageError):
        # A subclass with its parent's code says the same more exactly.
        if kind.exit_code != getattr(kind.__base__, "exit_code", None):
            meanings.setdefault(kind.exit_code, []).append(_first_line(kind))
    rows = [(str(code), _lowered("; or: ".join(meanings[code]))) for code in sorted(meanings)]
    return _table(("code", "means"), rows)


def record_tables() -> str:
    """The tables of the record, with the columns that are each one's own."""
    schema = (ROOT / "spiketriage/incident/schema.sql").read_text(encoding="utf-8")
    rows = []
    for name, body in TABLE.findall(schema):
        columns = [column for column in _columns(body) if column not in COMMON_COLUMNS]
        rows.append((f"`{name}`", ", ".join(columns)))
    return _table(("table", "columns"), rows)


def record_views() -> str:
    """The views for people's clients."""
    views = (ROOT / "spiketriage/incident/views.sql").read_text(encoding="utf-8")
    names = re.findall(r"^CREATE VIEW (\w+)", views, re.MULTILINE)
    return "".join(f"- `{name}`\n" for name in names)


def causes() -> str:
    """Every cause that can be named."""
    rows = [(cause.name, cause.cause_class, cause.summary, cause.repair) for cause in CAUSES]
    return _table(("cause", "class", "what it is", "repair"), rows)


def checks() -> str:
    """Every check with the first sentence of its file."""
    rows = [(check.NAME, _first_line(check).removeprefix("Check: ")) for check in CHECKS]
    return _table(("check", "holds when"), rows)


def stabilizers() -> str:
    """Every stabilizer in bring-up order, in the words of its own file."""
    rows = [(member.name, member.removes, member.cost, member.when) for member in STABILIZERS]
    return _table(("stabilizer", "failure it removes", "cost", "turn on"), rows)


def stages() -> str:
    """The stages of a step in their order."""
    return "".join(f"{number}. `{stage}`\n" for number, stage in enumerate(chain.STAGES, start=1))


def metrics() -> str:
    """One number a step and rank."""
    return _table(("metric", "unit"), [(f"`{name}`", unit) for name, unit in chain.METRICS.items()])


def series() -> str:
    """Vectors of a step and rank."""
    return _table(("series", "unit"), [(f"`{name}`", unit) for name, unit in chain.SERIES.items()])


def layers() -> str:
    """The layers contract as pyproject has it."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    contract = next(c for c in contracts if c["name"].startswith("Layers:"))
    lines = [line.replace("spiketriage.", "") for line in contract["layers"]]
    return "".join(["```text\n", *(f"{line}\n" for line in lines), "```\n"])


# (page, name of the block, what makes it)
GENERATED: tuple[tuple[str, str, Callable[[], str]], ...] = (
    ("formats", "formats", formats),
    ("exit-codes", "exit-codes", exit_codes),
    ("incident-folder", "tables", record_tables),
    ("incident-folder", "views", record_views),
    ("glossary", "causes", causes),
    ("glossary", "checks", checks),
    ("stabilizers", "stabilizers", stabilizers),
    ("recorded", "stages", stages),
    ("recorded", "metrics", metrics),
    ("recorded", "series", series),
    ("architecture", "layers", layers),
)


def block(name: str) -> re.Pattern[str]:
    """What stands between the two marks of a generated block."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    return re.compile(f"(?<={re.escape(begin)}).*?(?={re.escape(end)})", re.DOTALL)


def subclasses(root: type[errors.SpiketriageError]) -> list[type[errors.SpiketriageError]]:
    """Every error class below `root`, in the order of definition."""
    below = []
    for kind in root.__subclasses__():
        below += [kind, *subclasses(kind)]
    return below


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _first_line(described: object) -> str:
    words = (described.__doc__ or "").strip().splitlines()[0]
    return words.removesuffix(".").replace("|", "\\|")


def _lowered(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]


def _columns(body: str) -> list[str]:
    """Names of the columns: a comma inside brackets ends none."""
    names, depth, part = [], 0, ""
    for character in body + ",":
        depth += (character in "([") - (character in ")]")
        if character == "," and not depth:
            column = COLUMN.match(part)
            if column:
                names.append(column[1])
            part = ""
        else:
            part += character
    return names
