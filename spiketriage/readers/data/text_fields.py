"""The document in a row of a text corpus: its text, its messages, or its token ids.

This module never tokenizes: text becomes the ids 0 to 255 of its UTF-8 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from spiketriage.nouns.series import Integers
from spiketriage.readers.data.disk import of_text

TOKEN_FIELDS = ("input_ids", "tokens", "token_ids")
TEXT_FIELDS = ("text", "content", "raw_content")
TALK_FIELDS = ("messages", "conversations")
FIELDS = (*TOKEN_FIELDS, *TEXT_FIELDS, *TALK_FIELDS)
MAX_ID = 2**63 - 1


def tokens_of(row: Mapping[str, Any]) -> Integers | None:
    """The document in `row`, by the first field of `FIELDS` that holds one; None where none does.

    Of messages the contents count, one a line.
    """
    for name in FIELDS:
        tokens = _value(row[name], name) if name in row else None
        if tokens is not None:
            return tokens
    return None


def _value(value: Any, name: str) -> Integers | None:
    if name in TOKEN_FIELDS:
        return _ids(value)
    if name in TEXT_FIELDS:
        if isinstance(value, str):
            return of_text(_encoded(value))
        return None
    if not isinstance(value, list):
        return None
    contents = [text for text in map(_content, value) if text is not None]
    if contents:
        return of_text(_encoded("\n".join(contents)))
    return None


def _ids(value: Any) -> Integers | None:
    if not isinstance(value, list):
        return None
    if not all(type(item) is int and abs(item) <= MAX_ID for item in value):
        return None
    return np.array(value, dtype=np.int64)


def _content(message: Any) -> str | None:
    if not isinstance(message, dict):
        return None
    content = message.get("content", message.get("value"))
    if isinstance(content, list):  # parts of a multimodal message
        parts = []
        for part in content:
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                parts.append(part["text"])
        return "\n".join(parts)
    if isinstance(content, str):
        return content
    return None


def _encoded(text: str) -> bytes:
    """UTF-8, with a lone surrogate (JSON may hold one) as the three bytes that it would be."""
    return text.encode("utf-8", "surrogatepass")
