"""Runs what a runbook page shows and compares.

Every `console` block is executed, every line expected.

In a block, `$ ` begins a command and the lines below it are its stdout. `[..]` stands for anything
within a line, a line `[...]` for any number of lines, and a last line `[exit N]` for the exit code
when it is not 0.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXIT = re.compile(r"\[exit (\d+)\]")
ANY_TEXT, ANY_LINES = "[..]", "[...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One command of a page and what the page says it prints."""

    command: str
    expected: tuple[str, ...]
    exit_code: int

    @property
    def following(self) -> str:
        """The command that the output says comes next; empty when it says none."""
        last = [line for line in self.expected if line.startswith("next: ")]
        return last[-1].removeprefix("next: ") if last else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a command really printed.

    `talk` is its stderr, kept for the message of a failed test.
    """

    lines: tuple[str, ...]
    exit_code: int
    talk: str


def examples(page: str) -> list[Example]:
    """Every command of the page's console blocks, in order."""
    return [example for block in BLOCK.finditer(page) for example in _in_block(block[1])]


def execute(example: Example, folder: Path, env: Mapping[str, str]) -> Outcome:
    """Run the command in a shell of its own."""
    command = ["bash", "-c", example.command]
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, timeout=600, check=False
    )
    shown = done.stdout.decode(errors="replace")
    talk = done.stderr.decode(errors="replace")
    return Outcome(lines=tuple(shown.splitlines()), exit_code=done.returncode, talk=talk)


def matches(example: Example, outcome: Outcome) -> bool:
    """Whether the command did what the page says."""
    pattern = "".join(_pattern(line) for line in example.expected)
    text = "".join(f"{line}\n" for line in outcome.lines)
    return example.exit_code == outcome.exit_code and re.fullmatch(pattern, text) is not None


def leads_to(said: str, typed: str) -> bool:
    """Whether the command that a page says comes next is the one typed.

    `[..]` in it stands for anything.
    """
    return re.fullmatch(_pattern(said), f"{typed}\n") is not None


def rewritten(page: str, outcomes: Iterable[Outcome]) -> str:
    """The page with what was really printed; lines whose `[..]` still fits stay as they are."""
    left = iter(outcomes)
    return BLOCK.sub(lambda block: f"```console\n{_block_text(block[1], left)}```", page)


def told(example: Example, outcome: Outcome) -> str:
    """The difference, for a person."""
    said = [f"$ {example.command}", *_shown(example.expected, example.exit_code)]
    really = _shown(outcome.lines, outcome.exit_code)
    return "\n".join([*said, "", "really printed:", *really, "", "stderr:", outcome.talk])


def _in_block(text: str) -> Iterator[Example]:
    for piece in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, *expected = piece.splitlines()
        code = EXIT.fullmatch(expected[-1]) if expected else None
        shown = tuple(expected[:-1] if code else expected)
        yield Example(command=command, expected=shown, exit_code=int(code[1]) if code else 0)


def _pattern(line: str) -> str:
    if line == ANY_LINES:
        return r"(?:.*\n)*?"
    return ".*?".join(re.escape(part) for part in line.split(ANY_TEXT)) + r"\n"


def _block_text(text: str, outcomes: Iterator[Outcome]) -> str:
    return "".join(_example_text(example, next(outcomes)) for example in _in_block(text))


def _example_text(example: Example, outcome: Outcome) -> str:
    lines = example.expected if matches(example, outcome) else _kept(example, outcome)
    return "".join(
        f"{line}\n" for line in [f"$ {example.command}", *_shown(lines, outcome.exit_code)]
    )


def _kept(example: Example, outcome: Outcome) -> list[str]:
    elided = [line for line in example.expected if ANY_TEXT in line]
    return [
        next((old for old in elided if re.fullmatch(_pattern(old), f"{line}\n")), line)
        for line in outcome.lines
    ]


def _shown(lines: Iterable[str], exit_code: int) -> list[str]:
    return [*lines, *([f"[exit {exit_code}]"] if exit_code else [])]
