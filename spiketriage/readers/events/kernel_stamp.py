"""Takes the time, the host and the prefix off a line of dmesg, journalctl or syslog.

This module never assumes a time zone: only a stamp that names one becomes UNIX time.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime

_LEVEL = re.compile(r"\A\s*(?:kern|user|daemon|syslog|auth|local\d)\s*:\s*\w+\s*:\s*")
_BRACKET = re.compile(
    r"\[\s*(\d{1,10}\.\d{1,9}|[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})\]\s?"
)
_ISO = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)\s")
_SYSLOG = re.compile(r"([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)\s")
_ORIGIN = re.compile(r"\A(\S{1,255})\s+kernel:\s?")
JOURNAL_MARK = '"__REALTIME_TIMESTAMP"'


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLine:
    """A kernel message with where and when it was written; `stamped` if its line had a stamp."""

    message: str
    at: str = ""
    time_s: float | None = None
    host: str = ""
    stamped: bool = False


def iso_time_s(written: str) -> float | None:
    """UNIX time of an ISO 8601 stamp (with a point or a comma) that names its zone; else None."""
    match = re.fullmatch(r"(.{19})(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)", written)
    if match is None:
        return None
    seconds, fraction, zone = match.groups()
    if zone == "Z":
        zone = "+0000"
    stamp = f"{seconds.replace(' ', 'T')}{zone.replace(':', '')}"
    try:
        whole_s = datetime.strptime(stamp, "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except (ValueError, OverflowError):
        return None
    return whole_s + float(f"0.{fraction or 0}")


def kernel_line(text: str) -> KernelLine:
    """`text` taken apart; what is not recognised stays in the message."""
    if text.startswith("{") and JOURNAL_MARK in text:
        return _journal(text)
    rest, at, time_s, host = text, "", None, ""
    level = _LEVEL.match(rest)
    if level:
        rest = rest[level.end() :]
    stamp = _ISO.match(rest) or _SYSLOG.match(rest)
    if stamp:
        at, rest = stamp[1], rest[stamp.end() :]
        time_s = iso_time_s(at)
        origin = _ORIGIN.match(rest)
        if origin:
            host, rest = origin[1], rest[origin.end() :]
    bracket = _BRACKET.match(rest)
    if bracket:
        at, rest = at or bracket[1], rest[bracket.end() :]
    return KernelLine(message=rest, at=at, time_s=time_s, host=host, stamped=bool(at or level))


def _journal(text: str) -> KernelLine:
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        return KernelLine(message=text)
    if not isinstance(entry, dict):
        return KernelLine(message=text)
    at, time_s = "", None
    micros = str(entry.get("__REALTIME_TIMESTAMP"))
    if re.fullmatch(r"[0-9]{1,18}", micros):
        at, time_s = micros, int(micros) / 1e6
    host = entry.get("_HOSTNAME")
    if not isinstance(host, str):
        host = ""
    return KernelLine(
        message=_message(entry.get("MESSAGE")),
        at=at,
        time_s=time_s,
        host=host[:255],
        stamped=True,
    )


def _message(written: object) -> str:
    """A journal's message: text, or a list of bytes where it is not UTF-8."""
    if isinstance(written, str):
        return written
    if not isinstance(written, list):
        return ""
    if not all(isinstance(byte, int) and 0 <= byte < 256 for byte in written):
        return ""
    return bytes(written).decode("utf-8", "replace")
