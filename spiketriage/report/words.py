"""Numbers, places and foreign text as a report prints them: the same value in the same words.

It makes hidden characters visible, but never escapes for a medium: Markdown and HTML do that
themselves.
"""

from __future__ import annotations

import math
import re

from spiketriage.foreign_text import printable
from spiketriage.nouns.incident import Where

MAX_TEXT_CHARS = 600


def plain(text: str, *, limit: int = MAX_TEXT_CHARS) -> str:
    """`text` on one line, every invisible character written out, an over-long tail counted."""
    lines = [line.strip() for line in re.split(r"[\r\n]+", text)]
    flat = " ⏎ ".join(filter(None, lines)).replace("\t", " ")
    if len(flat) > limit:
        flat = f"{flat[:limit]}… ({len(flat) - limit} more characters)"
    return printable(flat)


def number(value: float | None) -> str:
    """Six significant digits; `NaN`, `+∞` and `−∞` in words; a dash when there is none."""
    if value is None:
        return "–"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        if value > 0:
            return "+∞"
        return "−∞"
    return f"{value:.6g}"


def count(num: int, noun: str, plural: str = "") -> str:
    """`1 step`, `1 204 steps`, `no steps`."""
    if num == 1:
        return f"1 {noun}"
    many = plural or f"{noun}s"
    if num == 0:
        return f"no {many}"
    grouped = f"{num:,}".replace(",", " ")
    return f"{grouped} {many}"


def size(num_bytes: int) -> str:
    """Bytes in binary units, exact below 1 KiB."""
    if num_bytes < 1024:
        return f"{num_bytes} B"
    units = ("KiB", "MiB", "GiB", "TiB")
    power = min(len(units), (num_bytes.bit_length() - 1) // 10)
    return f"{num_bytes / 1024**power:.1f} {units[power - 1]}"


def seconds(value_s: float) -> str:
    """Seconds with one decimal, minutes and hours when they read better."""
    if not math.isfinite(value_s):
        return f"{number(value_s)} s"
    if value_s < 60:
        return f"{value_s:.1f} s"
    minutes, rest_s = divmod(round(value_s), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest_s:02d} s"


def place(where: Where) -> str:
    """`step 48211 · rank 1 · activations blocks.3.mlp#0`; empty when nothing is known."""
    parts = []
    if where.step is not None:
        parts.append(f"step {where.step}")
    if where.rank is not None:
        parts.append(f"rank {where.rank}")
    link = " ".join(part for part in (where.stage, where.key) if part)
    parts.extend(part for part in (link, where.path, where.field) if part)
    return plain(" · ".join(parts))


def first_sentence(text: str, *, after_colon: bool = False) -> str:
    """First sentence of `text`, ended by a full stop."""
    head = re.split(r"(?<=[.!?])\s+(?=[A-Z])", plain(text), maxsplit=1)[0]
    if head and head[-1] not in ".!?…)":
        head = f"{head}."
    if after_colon:
        return head
    return sentence(head)


def sentence(text: str) -> str:
    """`text` with a capital letter, unless it begins with a name such as `blocks.3.mlp`."""
    first = text.partition(" ")[0].rstrip(",;:.")
    if first.isalpha() and first.islower():
        return text[:1].upper() + text[1:]
    return text


def without_step(text: str, step: int | None) -> str:
    """`text` without the `step N: ` that it begins with, for a place that names the step itself."""
    return text.removeprefix(f"step {step}: ")


def finite(text: str) -> str:
    """`text` with a distance of infinitely many scales called what it is."""
    return re.sub(r"\b(?:inf|nan) scales(?: off(?: at most)?)?", "not finite", text)


def generation_step(name: str | None) -> int | None:
    """Step that a generation's name ends with (`step-000160` → 160)."""
    match = re.search(r"(\d{1,18})$", name or "")
    if match:
        return int(match.group(1))
    return None
