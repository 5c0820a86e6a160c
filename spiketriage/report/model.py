"""The render model: what a report says, as plain nouns that Markdown and HTML both walk.

Its text is formatted and made visible already (`words.plain`); it never holds markup, except in
figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Tone = Literal["", "bad", "warn", "good", "muted"]
Style = Literal["text", "code", "number", "badge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table and how its cells are set."""

    title: str
    style: Style = "text"


def text(title: str) -> Column:
    """A column of text."""
    return Column(title=title)


def code(title: str) -> Column:
    """A column of names, digests and commands, set as they are typed."""
    return Column(title=title, style="code")


def number(title: str) -> Column:
    """A column of numbers, aligned to the right."""
    return Column(title=title, style="number")


def badge(title: str) -> Column:
    """A column of one word each."""
    return Column(title=title, style="badge")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a table: its cells, and a tone that repeats what one of them says in words."""

    cells: tuple[str, ...]
    tone: Tone = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A captioned table; a folded one is collapsed where the medium can do that."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    folded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A plot: `body` is the inside of an `<svg>` of the given size, made by `plot.draw` alone."""

    name: str
    title: str
    description: str
    width: int
    height: int
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """What a section lacks, and the command that fills it."""

    what: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One section; it is always present, and says what is missing when it has nothing to show."""

    key: str
    title: str
    paragraphs: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    bullets: tuple[str, ...] = ()
    missing: Missing | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Banner:
    """What a person reads at 3 am, before anything else."""

    verdict: str
    tone: Tone
    headline: str
    cause: str
    cause_class: str
    where: str
    summary: tuple[str, str, str]
    repair: str
    besides: str
    not_tested: tuple[str, ...]
    next_command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The whole report of one incident."""

    incident: str
    run: str
    status: str
    version: str
    chain_head: str
    banner: Banner
    sections: tuple[Section, ...]
