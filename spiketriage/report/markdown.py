"""The report as Markdown that can be pasted into a tracker.

Every piece of foreign text is escaped, so that it can neither start markup nor leave its table
cell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

from spiketriage.report.model import Banner, Column, Report, Section, Table

ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;"}


def render(report: Report) -> str:
    """Whole report as text."""
    lines = [
        f"# Incident {text(report.incident)}",
        "",
        f"Run {text(report.run)} · status {report.status} · spiketriage {text(report.version)}",
        "",
        *_banner(report.banner),
    ]
    for section in report.sections:
        lines += _section(section)
    return "\n".join(lines).rstrip() + "\n"


def text(value: str) -> str:
    """Foreign text as inert Markdown text."""
    escaped = re.sub(r"([\\`*\[\]|~#$])", r"\\\1", value)
    escaped = re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", escaped)
    escaped = "".join(ENTITIES.get(char, char) for char in escaped)
    # GitHub links bare addresses by itself; an entity keeps the letters and stops that.
    escaped = escaped.replace("://", "&#58;//")
    escaped = re.sub(r"(?i)\bwww\.", lambda match: match.group(0)[:-1] + "&#46;", escaped)
    # A list, a rule or an underline would start here; a zero-width space keeps it text.
    return re.sub(r"^([-+=]+(?=\s|$)|\d+(?=[.)](?:\s|$)))", r"&#8203;\1", escaped)


def code(value: str) -> str:
    """Foreign text as a code span that its own backticks cannot end, nor its pipes a table cell."""
    if not value.strip():
        return ""
    # A table would read the backslash as escaping ours, and the pipe as the end of the cell.
    if "\\|" in value:
        return text(value)
    longest = max((len(ticks) for ticks in re.findall(r"`+", value)), default=0)
    fence = "`" * (longest + 1)
    if value.startswith("`") or value.endswith("`"):
        value = f" {value} "
    return f"{fence}{value}{fence}".replace("|", "\\|")


def _banner(banner: Banner) -> Iterable[str]:
    yield f"## {text(banner.headline)}"
    yield ""
    yield f"> **{text(banner.verdict.upper())}** — {' '.join(map(text, banner.summary))}"
    yield ""
    if banner.besides:
        yield f"**Besides:** {text(banner.besides)}"
        yield ""
    yield "| | |"
    yield "|---|---|"
    yield f"| **Cause** | {text(banner.cause)} |"
    yield f"| **Class** | {text(banner.cause_class)} |"
    yield f"| **Where** | {code(banner.where)} |"
    yield f"| **Repair** | {text(banner.repair)} |"
    yield f"| **Not tested** | {'; '.join(map(text, banner.not_tested)) or 'nothing named'} |"
    yield f"| **Next** | {code(banner.next_command)} |"


def _section(section: Section) -> Iterable[str]:
    yield from ("", f"## {section.title}")
    if section.missing is not None:
        command = code(section.missing.command)
        yield from ("", f"*Missing:* {text(section.missing.what)} Fill it with {command}.")
    for paragraph in section.paragraphs:
        yield from ("", text(paragraph))
    for figure in section.figures:
        yield from ("", f"![{text(figure.description)}](plots/{figure.name}.svg)")
    for table in section.tables:
        yield from ("", *_table(table))
    if section.bullets:
        yield ""
    for bullet in section.bullets:
        yield f"- {text(bullet)}"


def _table(table: Table) -> Iterable[str]:
    if table.folded:
        yield from ("<details>", f"<summary>{escape(table.caption)}</summary>", "")
    else:
        yield from (f"**{text(table.caption)}**", "")
    yield "| " + " | ".join(column.title for column in table.columns) + " |"
    rules = ["--:" if column.style == "number" else "---" for column in table.columns]
    yield "|" + "|".join(rules) + "|"
    for row in table.rows:
        pairs = zip(table.columns, row.cells, strict=True)
        cells = [_cell(column, value) for column, value in pairs]
        yield "| " + " | ".join(cells) + " |"
    if table.folded:
        yield from ("", "</details>")


def _cell(column: Column, value: str) -> str:
    if column.style == "code" and value != "–":
        return code(value)
    return text(value)
