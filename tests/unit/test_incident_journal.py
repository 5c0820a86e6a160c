"""The chain names the row that was edited, or removed; these tests never sleep, read or write."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from spiketriage.incident import journal
from spiketriage.nouns.incident import JournalRow

FIELDS = (
    "at",
    "who",
    "host",
    "argv",
    "version",
    "outcome",
    "exit_code",
    "duration_s",
    "trusted",
    "previous",
    "digest",
    "number",
    "heads",
)


def chain(length: int) -> list[JournalRow]:
    rows: list[JournalRow] = []
    for i in range(length):
        row = JournalRow(
            number=0,
            at=f"2026-11-29T03:1{i % 10}:00+00:00",
            who="ann",
            host="node",
            argv=f"spiketriage check {i}",
            version="0.1.0",
            outcome="done",
            exit_code=0,
            duration_s=i / 8,
            previous="",
            digest="",
        )
        rows.append(journal.sealed(row, rows[-1] if rows else None))
    return rows


def edited(row: JournalRow, name: str) -> JournalRow:
    value = getattr(row, name)
    if isinstance(value, dict):
        changes: dict[str, Any] = {name: {**value, "facts": "1 x"}}
    elif isinstance(value, int | float):
        changes = {name: value + 1}
    else:
        changes = {name: value + "x"}
    return replace(row, **changes)


def test_an_untouched_chain_holds() -> None:
    assert journal.verify([]) is None
    assert journal.verify(chain(6)) is None


@given(length=st.integers(1, 6), where=st.integers(0, 5), name=st.sampled_from(FIELDS))
def test_an_edited_row_is_named(length: int, where: int, name: str) -> None:
    rows = chain(length)
    where %= length
    rows[where] = edited(rows[where], name)
    assert journal.verify(rows) == where + 1


@given(length=st.integers(2, 6), where=st.integers(0, 4))
def test_a_row_that_was_edited_and_sealed_again_is_named_by_the_row_after_it(
    length: int, where: int
) -> None:
    rows = chain(length)
    where %= length - 1
    forged = replace(rows[where], outcome="nothing to see")
    rows[where] = replace(forged, digest=journal.row_digest(forged))
    assert journal.verify(rows) == where + 1


@given(length=st.integers(2, 6), where=st.integers(0, 4))
def test_a_removed_row_is_named(length: int, where: int) -> None:
    rows = chain(length)
    where %= length - 1
    del rows[where]
    assert journal.verify(rows) == where + 1


def test_the_digest_is_sha256_of_the_row_before_and_sorted_json() -> None:
    first, second = chain(2)
    for row, before in ((first, "0" * 64), (second, first.digest)):
        values = {name: getattr(row, name) for name in FIELDS if name != "digest"}
        text = json.dumps(dict(sorted(values.items())), separators=(",", ":"))
        assert row.digest == hashlib.sha256(f"{before}\n{text}".encode()).hexdigest()
