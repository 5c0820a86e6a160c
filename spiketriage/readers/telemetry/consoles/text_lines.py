"""The lines of a console's log, freed of the prefixes of launchers and loggers.

This module never says what a line means; it keeps the rank that a prefix names.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from spiketriage.errors import EvidenceError
from spiketriage.readers.look import HEAD_BYTES, Look, look_at_file
from spiketriage.readers.telemetry.series import lines

_WORD = string.ascii_letters + string.digits + "_.+-"  # what a number that was cut may end in
_PREFIX = re.compile(
    r"\s*+(?:(?:"
    r"\[default(?P<local>\d{1,7})\]:?+"
    r"|\[rank(?P<rank>\d{1,7})\]:?+"
    r"|(?P<task>\d{1,7}): "
    r"|\([A-Za-z_][\w.]{0,99}+ (?:rank=\d+, )?+pid=\d+(?:, ip=[0-9a-fA-F.:]+)?+\)"
    r"|\[[Rr]ank (?P<logger>\d{1,7})\]:?+"
    r"|\[\d{4}-\d\d-\d\d[ T][\d:.,]++[^\]\n]{0,8}\]"
    r"|\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[\d.,]*+(?:Z|[+-]\d\d:?\d\d)?+"
    r"|\[(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\]"
    r"|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b:?+"
    r"|\[[\w./-]{1,200}+:\d+(?::\w+)?+\]"
    r"|\[titan\]"
    r"|[A-Za-z_][\w.]{0,99}+ - "
    r"|[-|] "
    r")\s*+)*+"
)
_NOTIONS = {  # the surest first, and what each means
    "rank": "[rankN]: (global, or local where torchrun's role is called rank)",
    "task": "srun's task number",
    "local": "[defaultN]: (torchrun's local rank: several nodes have the same)",
    "logger": "[Rank N] (as the logger says)",
}
LOGGER_RANK = _NOTIONS["logger"]
_OPENERS = frozenset(" \t\f\v[(-|0123456789")  # no other line is worth the expression above
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLine:
    """One line, or one state of a line that was rewritten by carriage returns.

    `number` counts line feeds from 1. `torn` says that its end is missing (no line feed, or too
    long); a last number that may have been cut is then left out of `text`. `overwritten` says that
    a later state followed on the same line. `raw` still has its prefixes.
    """

    number: int
    text: str
    raw: str
    rank: int | None = None
    notion: str = ""
    torn: bool = False
    overwritten: bool = False


def peel(raw: str, *, number: int = 0, torn: bool = False, overwritten: bool = False) -> TextLine:
    """The line without the prefixes of launchers and loggers, with the rank that they name."""
    text = raw.rstrip(_WORD) if torn else raw
    prefix = None
    if text[:1] in _OPENERS or " - " in text or text.startswith(_LEVELS):
        prefix = _PREFIX.match(text)
    if prefix is None:
        return TextLine(number=number, text=text, raw=text, torn=torn, overwritten=overwritten)
    ranks = prefix.groupdict()
    notion = next((name for name in _NOTIONS if ranks[name] is not None), "")
    return TextLine(
        number=number,
        text=text[prefix.end() :],
        raw=text,
        rank=int(ranks[notion]) if notion else None,
        notion=_NOTIONS.get(notion, ""),
        torn=torn,
        overwritten=overwritten,
    )


def open_text(path: Path) -> Look:
    """A look at the text file at `path`.

    Raises:
        EvidenceError: it is missing, a folder, a Git-LFS pointer, or no text.
    """
    seen = look_at_file(path)
    if lines.encoding_of(seen.head) is None:
        raise EvidenceError(f"{path}: is not a text log: its first {HEAD_BYTES} bytes are binary")
    return seen


class TextLines:
    """The lines of a file that contain one of `anchors`, once; the others are only counted."""

    def __init__(self, path: Path, anchors: tuple[str, ...]) -> None:
        self._path = path
        self.problems: list[str] = []
        self._lines = lines.Lines(
            self._blocks(),
            anchors=anchors,
            encoding=lines.encoding_of(open_text(path).head) or "utf-8",
            max_chars=lines.MAX_LINE_CHARS,
            is_console=True,
        )

    def __iter__(self) -> Iterator[TextLine]:
        """Every line with an anchor and every state of a rewritten one, in order."""
        for line in self._lines:
            yield peel(
                line.text,
                number=line.number,
                torn=line.is_torn,
                overwritten=line.is_overwritten,
            )

    @property
    def num_lines(self) -> int:
        """Lines so far, each state of a rewritten one counted."""
        return self._lines.num_lines

    @property
    def num_cut(self) -> int:
        """Lines so far that were too long."""
        return self._lines.num_cut

    @property
    def torn_at(self) -> int | None:
        """The number of the last line, if it has no line feed."""
        return self._lines.torn_at

    def _blocks(self) -> Iterator[bytes]:
        try:
            with self._path.open("rb", buffering=0) as stream:
                while block := stream.read(lines.BLOCK_BYTES):
                    yield block
        except OSError as error:
            self.problems.append(f"{self._path}: cannot be read further: {error.strerror or error}")
