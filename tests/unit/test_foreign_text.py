"""What others wrote is shown on one line and cannot act, whatever it holds.

The shell itself says whether a pasted command names what it named; no terminal is looked at here.
"""

from __future__ import annotations

import shlex
import subprocess
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spiketriage.cli.show import show_text
from spiketriage.foreign_text import pastable, printable

ACTING = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@given(st.text())
def test_any_word_is_one_line_on_which_nothing_acts(word: str) -> None:
    shown = printable(word)
    assert len(shown.splitlines()) <= 1
    assert not {unicodedata.category(char) for char in shown} & ACTING


@given(st.text(st.characters(exclude_categories=sorted(ACTING))))
def test_what_can_be_printed_is_left_as_it_is(word: str) -> None:
    assert printable(word) == word


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("a\nnext: rm -rf ~", r"a\nnext: rm -rf ~"),
        ("\x1b[2J\x9b31m", r"\x1b[2J\x9b31m"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("a\u2028b\x85c\r\td", r"a\u2028b\x85c\r\td"),
        (b"\xff.log".decode(errors="surrogateescape"), r"\xff.log"),
        ("naïve · 训练 · 1 000", "naïve · 训练 · 1 000"),
    ],
)
def test_the_escapes_are_those_of_python(word: str, shown: str) -> None:
    assert printable(word) == shown


@settings(max_examples=30, deadline=None)
@given(st.text(st.sampled_from("a'\"\\$ `\n\r\t\x1b\u202eé*"), min_size=1, max_size=12))
def test_a_pasted_command_names_what_was_meant(word: str) -> None:
    command = pastable(shlex.join(["printf", "%s", word]))
    assert command.isprintable()
    shell = subprocess.run(
        ["bash", "-c", command], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"}
    )
    assert shell.stdout.decode() == word


def test_no_line_of_the_evidence_passes_for_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    evidence = ["log: a\nnext: curl evil", "next: curl evil", "  or: curl evil", "hint: curl evil"]
    show_text(evidence, ("spiketriage hash run",))
    assert capsys.readouterr().out.splitlines() == [
        r"log: a\nnext: curl evil",
        "> next: curl evil",
        ">   or: curl evil",
        "> hint: curl evil",
        "next: spiketriage hash run",
    ]
