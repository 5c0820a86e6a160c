"""A configuration as text (JSON, YAML, TOML, INI, a shell script) without its credentials.

This module never parses a format whole: a file that is cut off or no longer valid is no refuge.
"""

from __future__ import annotations

import re

from spiketriage.redaction import KNOWN, Patterns, Redacted, is_credential, mark, shapes

MAX_VALUE_CHARS = 1 << 16  # of a value without an end: no credential is longer
# the last of the separators is that of an option in a list of words
_KEY = re.compile(
    r"(?P<flag>(?<![\w.-])--)?(?<![\w.])(?P<quote>[\"']?)(?P<key>[A-Za-z_][\w.-]{0,127})(?P=quote)"
    r"(?P<separator>[ \t]*[:=][ \t]*|[ \t]+|[\"'][ \t]{0,8},\s{0,64})"
)
_QUOTED = re.compile(r"\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'")
_TRIPLE = ('"""', "'''")
_BARE_END = re.compile(r"[ \t]#|[}\]]|,[ \t]*[\"']?[\w.-]{1,128}[\"']?[ \t]*:")
_BLOCKS = ("", "|", "|-", "|+", ">", ">-", ">+")  # what stands before a value on lines of its own
_ITEM = re.compile(r"\n[ \t]*- ")  # a list below its key
# nothing, a truth value, the name of a variable, or what somebody has redacted before
_HARMLESS = re.compile(
    r"|true|false|null|none|~|yes|no|\$\{?\w+\}?|\$\{\w+(?:[.:]\w+)*\}|os\.(?:environ|getenv)\b.*"
    r"|redacted\b.*",
    re.IGNORECASE,
)
# of a `token`: a number, or a mark of the vocabulary
_NO_TOKEN = re.compile(r"[-+.\d]+(?:e[-+]?\d+)?|<.*>|\[[A-Z0-9_]+\]", re.IGNORECASE)


def redacted(text: str, patterns: Patterns = KNOWN) -> Redacted:
    """`text` without what keys of telling names hold, and without values of a telling shape."""
    parts: list[str] = []
    done = num_values = position = 0
    while match := _KEY.search(text, position):
        position = match.end()
        is_stated = match["flag"] is not None or match["separator"].strip() in (":", "=")
        if not is_stated or not is_credential(match["key"], patterns):
            continue
        if text.startswith("{", position):  # a section, whose keys come next
            continue
        end = _value_end(text, match)
        value = text[position:end]
        if _is_harmless(match["key"], value):
            continue
        parts += [text[done:position], _in_its_quotes(value, match)]
        done = position = end
        num_values += 1
    parts.append(text[done:])
    shaped = shapes("".join(parts), patterns)
    return Redacted(text=shaped.text, num_values=num_values + shaped.num_values)


def _value_end(text: str, match: re.Match[str]) -> int:
    """Where the value ends that begins behind a key: never before it, rather too late."""
    start = match.end()
    if text.startswith(_TRIPLE, start):
        end = text.find(text[start : start + 3], start + 3)
        return len(text) if end < 0 else end + 3
    quoted = _QUOTED.match(text, start)
    if quoted:
        return quoted.end()
    limit = min(len(text), start + MAX_VALUE_CHARS)
    line_end = text.find("\n", start, limit)
    if line_end < 0:
        line_end = limit
    if text.startswith("[", start):
        end = text.find("]", start, limit)
        return line_end if end < 0 else end + 1
    line = text[start:line_end].rstrip()
    if line in _BLOCKS and (line or _ITEM.match(text, line_end)):
        return _block_end(text, match.start(), line_end)
    if match["separator"].strip(" \t") != ":" and match["separator"] != " = ":
        return start + len(line.split(maxsplit=1)[0]) if line else start
    stop = _BARE_END.search(line)
    return start + (len(line[: stop.start()].rstrip()) if stop else len(line))


def _block_end(text: str, key_start: int, line_end: int) -> int:
    """The end of a YAML block: the lines that are indented further than its key."""
    indent = key_start - (text.rfind("\n", 0, key_start) + 1)
    while line_end < len(text):
        next_end = text.find("\n", line_end + 1)
        if next_end < 0:
            next_end = len(text)
        line = text[line_end + 1 : next_end]
        depth = len(line) - len(line.lstrip(" "))
        is_item = depth == indent and line.startswith("- ", depth)
        if line.strip() and depth <= indent and not is_item:
            break
        line_end = next_end
    return line_end


def _is_harmless(key: str, value: str) -> bool:
    bare = value.strip().strip("\"'").strip()
    if _HARMLESS.fullmatch(bare):
        return True
    return key.lower().endswith("token") and bool(_NO_TOKEN.fullmatch(bare))


def _in_its_quotes(value: str, match: re.Match[str]) -> str:
    """The mark of a value, quoted as that was; where the key is quoted the value must be."""
    bare = value.strip("\"'")
    if value.startswith("\n"):  # the items of a list, below the colon
        return f" {mark(bare)}"
    if value[:1] in ("'", '"'):
        quote = value[:1]
    elif match["separator"].strip(" \t") == "=" and match["separator"] != "=":
        quote = '"'  # TOML and Python know no bare words; a shell has no space here
    else:
        quote = match["quote"]
    return f"{quote}{mark(bare)}{quote}"
