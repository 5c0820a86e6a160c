"""Decodes an event file's common records in groups: same bytes but for time, step and value.

This module never decides what a record means: one of each kind goes through the slow walk, the
others must equal it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spiketriage.nouns.series import Floats, Integers
from spiketriage.readers.telemetry.stores import crc32c, event_record
from spiketriage.readers.telemetry.stores.event_file import Window, unaligned

_STEP_AT = 10  # behind the time's key and eight bytes, and the step's key
_TIME_KEY, _STEP_KEY = 0x09, 0x10
_MAX_STEP_BYTES = 5
_LENGTHS = range(
    _STEP_AT + _MAX_STEP_BYTES + 8, 257
)  # eight bytes behind the step, a row that the CRC takes
_MIN_GROUP = 8
_MAX_ROUNDS = 3
_ODD = np.array(
    [0x9E3779B97F4A7C15 * (2 * k + 1) & 0xFFFFFFFFFFFFFFFF | 1 for k in range(32)], dtype=np.uint64
)
_Unsigned = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """Points of one tag in one window; `records` are their numbers in it."""

    tag: str
    records: Integers
    steps: Integers
    values: Floats
    times_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorted:
    """A window's records: decoded in groups, with a checksum that fails, and all others."""

    decoded: tuple[Decoded, ...]
    damaged: Integers
    others: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Records of one length and one width of the step.

    `words` is all that stands behind the step, by eight bytes.
    """

    window: Window
    members: Integers
    starts: Integers
    length: int
    step_bytes: int
    word_places: Integers
    words: _Unsigned

    def select(self, keep: NDArray[np.bool_]) -> _Group:
        return _Group(
            window=self.window,
            members=self.members[keep],
            starts=self.starts[keep],
            length=self.length,
            step_bytes=self.step_bytes,
            word_places=self.word_places,
            words=self.words[keep],
        )


def decode(window: Window) -> Sorted:
    """Every record of the window, sorted into what could be decoded at once and what could not."""
    decoded: list[Decoded] = []
    damaged: list[Integers] = []
    others = np.ones(len(window.offsets), dtype=np.bool_)
    for group in _groups(window):
        for _ in range(_MAX_ROUNDS):
            if len(group.members) < _MIN_GROUP:
                break
            taken = _round(group, decoded, damaged)
            if not taken.any():
                break
            others[group.members[taken]] = False
            group = group.select(~taken)
    return Sorted(
        decoded=tuple(decoded),
        damaged=np.concatenate(damaged) if damaged else np.empty(0, dtype=np.int64),
        others=np.flatnonzero(others),
    )


def _groups(window: Window) -> list[_Group]:
    data = np.frombuffer(window.data, dtype=np.uint8)
    fits = (window.lengths >= _LENGTHS.start) & (window.lengths < _LENGTHS.stop)
    members = np.flatnonzero(fits)
    starts = window.offsets[members]
    common = (data[starts] == _TIME_KEY) & (data[starts + 9] == _STEP_KEY)
    members, starts = members[common], starts[common]
    step_bytes = _varint_widths(data, starts + _STEP_AT)
    keys = window.lengths[members] * 16 + step_bytes
    order = np.argsort(keys, kind="stable")
    cuts = np.flatnonzero(np.diff(keys[order])) + 1
    eights = unaligned(window.data, "<u8")
    groups = []
    for chosen in np.split(order, cuts):
        if len(chosen) < _MIN_GROUP or step_bytes[chosen[0]] > _MAX_STEP_BYTES:
            continue
        length, width = int(window.lengths[members[chosen[0]]]), int(step_bytes[chosen[0]])
        places = np.append(
            np.arange(_STEP_AT + width, length - 8, 8), length - 8
        )  # the last one may overlap
        groups.append(
            _Group(
                window=window,
                members=members[chosen],
                starts=starts[chosen],
                length=length,
                step_bytes=width,
                word_places=places,
                words=eights[starts[chosen][:, None] + places].astype(np.uint64),
            )
        )
    return groups


def _varint_widths(data: NDArray[np.uint8], places: Integers) -> Integers:
    widths = np.ones(len(places), dtype=np.int64)
    goes_on = data[places] >= 0x80
    for further in range(1, _MAX_STEP_BYTES + 1):
        widths += goes_on
        goes_on &= data[places + further] >= 0x80
    return widths


def _round(group: _Group, decoded: list[Decoded], damaged: list[Integers]) -> NDArray[np.bool_]:
    """Decode all records that equal one which the slow walk finds common, but for their values."""
    model = _parsed(group, 0)
    if model is None:
        return np.zeros(len(group.members), dtype=np.bool_)
    value_at = model.place
    masked = group.words & _mask(group, value_at)
    hashes = (masked * _ODD[: masked.shape[1]]).sum(axis=1, dtype=np.uint64)
    _, firsts, kinds = np.unique(hashes, return_index=True, return_inverse=True)
    models = [_parsed(group, int(first)) for first in firsts]
    tags: list[str | None] = []
    for parsed in models:
        is_alike = parsed is not None and parsed.place == value_at
        tags.append(parsed.tag if parsed is not None and is_alike else None)
    is_model = np.array([tag is not None for tag in tags])
    taken: NDArray[np.bool_] = is_model[kinds] & (masked == masked[firsts[kinds]]).all(axis=1)
    sound = taken & _is_sound(group, value_at, firsts, kinds)
    damaged.append(group.members[taken & ~sound])
    _append(group.select(sound), kinds[sound], tags, value_at, decoded)
    return taken


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    tag: str
    place: int


def _parsed(group: _Group, number: int) -> _Model | None:
    start = int(group.starts[number])
    try:
        event = event_record.parse(group.window.data, start, start + group.length)
    except event_record.MalformedError:
        return None
    if not event_record.is_common(event):
        return None
    place = event.scalars[0].place
    if place is None:
        return None
    return _Model(tag=event.scalars[0].tag, place=place - start)


def _mask(group: _Group, value_at: int) -> _Unsigned:
    """What to keep of each word so that the value's four bytes do not count."""
    masks = []
    for place in group.word_places.tolist():
        kept = bytes(0 if value_at <= place + k < value_at + 4 else 0xFF for k in range(8))
        masks.append(int.from_bytes(kept, "little"))
    return np.array(masks, dtype=np.uint64)


def _is_sound(group: _Group, value_at: int, firsts: Integers, kinds: Integers) -> NDArray[np.bool_]:
    """Whether each record's checksum fits.

    The register is linear, so only the bytes that vary are looked up.
    """
    data = np.frombuffer(group.window.data, dtype=np.uint8)
    varying = [
        *range(1, 9),
        *range(_STEP_AT, _STEP_AT + group.step_bytes),
        *range(value_at, value_at + 4),
    ]
    models = data[group.starts[firsts][:, None] + np.arange(group.length)].copy()
    register = (crc32c.of_rows(models))[kinds]
    tables = crc32c.tables(256)
    for place in varying:
        table = tables[group.length - 1 - place]
        register ^= table[data[group.starts + place] ^ models[:, place][kinds]]
    stored = unaligned(group.window.data, "<u4")[group.starts + group.length]
    sound: NDArray[np.bool_] = crc32c.mask(register) == stored
    return sound


def _append(
    group: _Group, kinds: Integers, tags: list[str | None], value_at: int, decoded: list[Decoded]
) -> None:
    times_s = unaligned(group.window.data, "<f8")[group.starts + 1].astype(np.float64)
    raw_steps = unaligned(group.window.data, "<u8")[group.starts + _STEP_AT].astype(np.uint64)
    steps = np.zeros(len(group.starts), dtype=np.int64)
    for k in range(group.step_bytes):
        steps |= ((raw_steps >> np.uint64(8 * k)) & np.uint64(0x7F)).astype(np.int64) << (7 * k)
    values = unaligned(group.window.data, "<f4")[group.starts + value_at].astype(np.float64)
    order = np.argsort(kinds, kind="stable")
    for chosen in np.split(order, np.flatnonzero(np.diff(kinds[order])) + 1):
        tag = tags[int(kinds[chosen[0]])] if len(chosen) else None
        if tag is not None:
            decoded.append(
                Decoded(
                    tag=tag,
                    records=group.members[chosen],
                    steps=steps[chosen],
                    values=values[chosen],
                    times_s=times_s[chosen],
                )
            )
