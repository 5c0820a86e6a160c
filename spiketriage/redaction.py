"""Credentials in text that somebody else wrote: known by the name of a key or by their own shape.

This module never keeps a value that it replaced, only its digest, and never changes anything else.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MARK = "redacted-sha256-"
DIGEST_CHARS = 16  # tells two values apart, and is no use where the value itself is random
_CREDENTIAL = re.compile(
    r"passw(?:or)?d|passphrase|secret|credential|authorization|webhook|cookie|(?:^|_)pwd$|token$"
    r"|(?:api|access|account|auth|encryption|license|private|routing|session|shared|signing|ssh)_?key"
)
# marks of a vocabulary, and counts of tokens
_SPECIAL_TOKEN = re.compile(
    r"(?:[bes]o[sit]|pad|unk|unknown|mask|cls|sep|image|video|audio|vision|start|end|stop|prefix"
    r"|suffix|middle|special|extra|think|tool|per|by|each|next|first|last|max|min|num)_?token$"
)
_PLACE = re.compile(r"(?:path|file|folder|dir|env|var)$")  # where a credential lies, not what it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a credential looks like; without one of `hints` in a text there is none in it."""

    hints: tuple[str, ...]
    pattern: re.Pattern[str]


def _begun(prefix: str, rest: str) -> Shape:
    """A word that begins so: `rest` is the pattern of what follows `prefix`."""
    pattern = rf"(?<![\w-]){re.escape(prefix)}{rest}(?![\w-])"
    return Shape(hints=(prefix,), pattern=re.compile(pattern))


_GITHUB = tuple(_begun(f"gh{kind}_", r"[A-Za-z0-9]{20,}") for kind in "pousr")
SHAPES: tuple[Shape, ...] = (
    *_GITHUB,
    _begun("github_pat_", r"\w{20,}"),
    _begun("glpat-", r"[\w-]{20,}"),
    _begun("hf_", r"[A-Za-z0-9]{20,}"),
    _begun("sk-", r"(?:[A-Za-z0-9]{32,}|(?:ant|proj|svcacct|admin|or|lf)-[\w-]{20,})"),
    _begun("xox", r"[abeoprs]-[\w-]{10,}"),  # Slack
    _begun("AIza", r"[\w-]{35}"),  # Google
    _begun("AKIA", r"[0-9A-Z]{16}"),  # AWS
    _begun("ASIA", r"[0-9A-Z]{16}"),
    _begun("wandb_v1_", r"\w{20,}"),
    _begun("local-", r"[0-9a-f]{40}"),  # W&B on a server of one's own
    _begun("eyJ", r"[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,}"),  # JSON Web Token
    # forty hexadecimal digits alone might be a commit
    Shape(hints=("wandb login ",), pattern=re.compile(r"(?<=wandb login )[0-9a-f]{40}\b")),
    # who knows the address of a webhook may write there
    Shape(
        hints=("hooks.slack.com/", "discord.com/"),
        pattern=re.compile(r"(?<=/services/)[\w/]{20,}|(?<=/webhooks/)\d{10,20}/[\w-]{20,}"),
    ),
    Shape(hints=("Bearer ",), pattern=re.compile(r"(?<=Bearer )[\w.~+/-]{16,}=*")),
)
_IN_URL = re.compile(r"(://[^\s/@:\"']{0,256}:)([^\s/@\"']{1,256})(?=@)")
_PEM_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----")
PEM_BEGIN, PEM_END = "-----BEGIN ", "-----END "
HINTS = (*(hint for shape in SHAPES for hint in shape.hints), "://", PEM_BEGIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patterns:
    """What a run's settings add to what is known here: names of keys, and shapes of values."""

    keys: tuple[re.Pattern[str], ...] = ()
    values: tuple[re.Pattern[str], ...] = ()


KNOWN = Patterns()


@dataclass(frozen=True, slots=True, kw_only=True)
class Redacted:
    """A text without its credentials, and how many there were."""

    text: str
    num_values: int


def mark(value: str) -> str:
    """What stands in place of a value: equal for equal values."""
    digest = hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()
    return f"{MARK}{digest[:DIGEST_CHARS]}"


def is_credential(key: str, patterns: Patterns = KNOWN) -> bool:
    """Whether what a key of this name holds is a credential."""
    if any(pattern.search(key) for pattern in patterns.keys):
        return True
    name = key.lower().replace("-", "_").replace(".", "_")
    if _SPECIAL_TOKEN.search(name) or _PLACE.search(name):
        return False
    return bool(_CREDENTIAL.search(name))


def shapes(text: str, patterns: Patterns = KNOWN) -> Redacted:
    """`text` without the values that look like a credential wherever they stand."""
    num_values = 0

    def replaced(match: re.Match[str]) -> str:
        nonlocal num_values
        num_values += 1
        return mark(match[0])

    def in_url(match: re.Match[str]) -> str:
        nonlocal num_values
        if match[2].startswith(MARK):
            return match[0]
        num_values += 1
        return match[1] + mark(match[2])

    for shape in SHAPES:
        if any(hint in text for hint in shape.hints):
            text = shape.pattern.sub(replaced, text)
    for pattern in patterns.values:
        text = pattern.sub(replaced, text)
    if "://" in text and "@" in text:
        text = _IN_URL.sub(in_url, text)
    without_keys = _private_keys(text)
    return Redacted(text=without_keys.text, num_values=num_values + without_keys.num_values)


def settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of `values` without credentials, in the sections below too."""
    return {key: _setting(str(key), value) for key, value in values.items()}


def _setting(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return settings(value)
    if isinstance(value, list):
        return [_setting(key, item) for item in value]
    if isinstance(value, tuple):
        return tuple(_setting(key, item) for item in value)
    if not isinstance(value, str):
        return value
    if value.startswith(MARK):
        return value
    if value and is_credential(key):
        return mark(value)
    return shapes(value).text


def _private_keys(text: str) -> Redacted:
    """`text` without private keys in PEM, each to its end, or to the end of the text."""
    parts: list[str] = []
    done = num_values = 0
    while begin := _PEM_BEGIN.search(text, done):
        end = text.find(PEM_END, begin.end())
        if end < 0:
            end = len(text)
        parts += [text[done : begin.end()], "\n", mark(text[begin.end() : end]), "\n"]
        done = end
        num_values += 1
    return Redacted(text="".join([*parts, text[done:]]), num_values=num_values)
