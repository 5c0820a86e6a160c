"""How a word that somebody else wrote is shown: on one line, with nothing in it that acts.

Every foreign word on a terminal, in a sentence or in a report goes through `printable`; it never
shortens, and never escapes for a medium (HTML and Markdown do that themselves).
"""

from __future__ import annotations

import re
import shlex
import unicodedata

# What `str.isprintable` refuses and is only a kind of space.
_SPACE = "Zs"
_UNDECODABLE = re.compile("[\udc80-\udcff]")


def printable(word: object) -> str:
    r"""Return `str(word)`, its control, line-breaking, bidirectional and hidden characters spelled.

    They appear as Python escapes (`\n`, `\x1b`, `\u202e`); a byte that was no text as `\xff`.
    """
    text = str(word)
    if text.isprintable():
        return text
    return "".join(map(_spelled, text))


def pastable(command: str) -> str:
    """Return a command of the shell with its unprintable words in bash's `$'…'` quotes.

    A name with a line break stays the name that it is when the command is pasted.
    """
    if command.isprintable():
        return command
    return " ".join(map(_quoted, shlex.split(command)))


def _quoted(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    backslashed = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{printable(backslashed)}'"


def _spelled(char: str) -> str:
    if char.isprintable() or unicodedata.category(char) == _SPACE:
        return char
    if _UNDECODABLE.match(char):
        return f"\\x{ord(char) & 0xFF:02x}"
    return char.encode("unicode_escape").decode()
