"""A step's result on stdout: text for people, or one JSON envelope for programs.

The result only ever goes to stdout, talk never does; evidence in it can never steer the terminal.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TextIO

from spiketriage.errors import Exit
from spiketriage.foreign_text import pastable, printable
from spiketriage.nouns.incident import StepResult
from spiketriage.wire.telemetry import encode_json

if TYPE_CHECKING:
    from spiketriage.detect.detector import Alarm

_PLAIN = str.maketrans(
    {"—": "-", "–": "-", "…": "...", "→": "->", "←": "<-", "×": "x", "÷": "/", "≤": "<=", "≥": ">="}
    | {"‘": "'", "’": "'", "“": '"', "”": '"', "·": "-", "•": "*", "±": "+-", "≠": "!=", "≈": "~"}
)
# What a person copies must come in one piece.
_WHOLE = re.compile(r"(?:next|  or): |    (?:import|rehearse)  ")
_LIKE_A_COMMAND = re.compile(r"^(?=[^\S\n]*(?:next|or|hint):)", re.MULTILINE)
_STYLES = (
    (r"\b(differs|nonfinite|established|refused|missing)\b", "bold red"),
    (r"\b(agrees|bitwise identical|nothing-found)\b", "green"),
    (r"\b(not testable|undetermined|unresolved)\b", "yellow"),
    (r"^next: .*$", "bold"),
)


def show(command: str, result: StepResult, as_json: bool) -> int:
    """Print the result of `command` and return its exit code."""
    if as_json:
        emit(envelope(command, result))
    else:
        show_text(result.lines, result.next_commands)
    return result.exit_code


def envelope(command: str, result: StepResult, error: Mapping[str, str] | None = None) -> str:
    """Return the JSON envelope of a result, one line; nonfinite numbers are spelled as strings."""
    fields: dict[str, Any] = {
        "schema": f"spiketriage.{command}/1",
        "ok": result.exit_code == Exit.DONE,
        "verdict": result.verdict,
        "exit": result.exit_code,
        "incident": result.incident,
        "data": result.data,
        "next": result.next_commands,
    }
    if error is not None:
        fields["error"] = error
    return encode_json(fields).decode() + "\n"


def show_alarm(alarm: Alarm, as_json: bool) -> None:
    """Print an alarm at once: its sentence, or one JSON object on a line of its own."""
    if as_json:
        emit(encode_json(asdict(alarm)).decode() + "\n")
    else:
        show_text([alarm.sentence])


def show_text(lines: Iterable[str], next_commands: Sequence[str] = ()) -> None:
    """Print lines, then the next commands, in ASCII where the encoding wants it.

    A line that only looks like a next command is quoted: evidence must not tell people what to run.
    """
    clean = [printable(line) for line in lines]
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        clean = [wrapped(line, width) for line in clean]
    clean = [_LIKE_A_COMMAND.sub("> ", line) for line in clean]
    clean += _next_lines(next_commands)
    text = "".join(f"{line}\n" for line in clean)
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":
        text = _coloured(text)
    emit(encodable(text, sys.stdout.encoding))


def wrapped(line: str, width: int) -> str:
    """Break a line at the width of a terminal, with a hanging indent; commands stay whole."""
    if len(line) <= width or _WHOLE.match(line):
        return line
    indent = 2
    for gap in re.finditer(r" {2,}", line):
        if gap.end() <= width // 2:
            indent = gap.end()  # the last column that begins in the left half
    pieces = textwrap.wrap(
        line,
        width,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )
    return "\n".join(pieces)


def encodable(text: str, encoding: str | None) -> str:
    """Return the text as a stream of this encoding can carry it."""
    name = (encoding or "ascii").lower().replace("-", "").replace("_", "")
    if name in ("utf8", "utf8sig", "utf16", "utf32"):
        return text
    return text.translate(_PLAIN).encode("ascii", "backslashreplace").decode()


def emit(text: str) -> None:
    """Write to stdout and flush; a reader that went away is no error.

    Raises:
        OSError: stdout cannot be written (a full disk behind a redirection).
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _silence(sys.stdout)
    except OSError:
        _silence(sys.stdout)
        raise


def _next_lines(commands: Sequence[str]) -> list[str]:
    lines = []
    for number, command in enumerate(commands):
        label = "next" if number == 0 else "  or"
        lines.append(f"{label}: {printable(pastable(command))}")
    return lines


def _coloured(text: str) -> str:
    from rich.console import Console
    from rich.text import Text

    styled = Text(text, end="")
    for pattern, style in _STYLES:
        styled.highlight_regex(re.compile(pattern, re.MULTILINE), style)
    console = Console(force_terminal=True)
    with console.capture() as captured:
        console.print(styled, soft_wrap=True, end="")
    return captured.get()


def _silence(stream: TextIO) -> None:
    """Point the stream at nothing: the interpreter's last flush must not change the exit code."""
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), stream.fileno())
