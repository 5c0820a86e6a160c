"""Changes of a file's bytes, from a flipped bit to a spliced pickle; every one from a seeded source.

This module never reads or writes a file.
"""

from __future__ import annotations

import io
import itertools
import json
import pickle
import pickletools
import random
import re
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence

Mutation = Callable[[bytearray, random.Random, Sequence[bytes]], None]
MAX_BYTES = 2_000_000
SPANS = (1, 2, 4, 8, 16, 100, 1000, 5000)
WORDS = (
    b"NaN", b"-inf", b"Infinity", b"1e400", b"-0", b"9" * 30, b"9" * 5000, b"18446744073709551616",
    b"-1", b"\0", b"\xff" * 8, b"\r", b"\n", b"\r\n", b"\x1b[31m", b"\xe2\x80\xae", b"{", b"}",
    b"[", b"]", b'"', b"null", b"true", b"[]", b"{}", b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06",
    b"PK\x06\x06", b"step", b"loss", b"\xed\xa0\x80", b"\\ud800", b"0x10", b"1_000",
    b"\xd9\xa1\xd9\xa2", b"\xc2\xb2", b"9999-99-99T99:99:99", b"0001-01-01T00:00:00",
    b"9999-12-31T23:59:59+00:00", b"%s", b"{0}", b"5e-324", b"\x80\x02", b"\x80\x04\x95", b".",
    b"]]>", b"<!ENTITY", b"rank99999999999999999999:", b"\xf0\x9f\x92\xa9", b"9223372036854775808",
    b"-9223372036854775809", b"4294967296", b"253402300800", b"1e18", b"\\\\", b"next: rm", b"../",
)  # fmt: skip
EDGES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 63)
_NUMBER = re.compile(rb"-?\d{1,30}(\.\d{1,30})?(e[-+]?\d{1,4})?", re.IGNORECASE)
_TEXT = re.compile(rb'"[^"\n]{0,60}"')
_JSON_VALUES = (
    None, True, 0, -1, 1 << 70, 1e308, float("nan"), "", "\0", "\ud800", "x" * 5000, [], {},
    [[[]]], {"step": 1}, "next: rm -rf /", "a\nb", "\u202e",
)  # fmt: skip


def mutant(data: bytes, rng: random.Random, pool: Sequence[bytes]) -> bytes:
    """Return `data` after one to nine changes; `pool` holds files to splice from."""
    if rng.random() < 0.25:
        changed = structured(data, rng)
        if changed is not None:
            return changed[:MAX_BYTES]
    changed = bytearray(data or b"\0")
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5, 9))):
        rng.choice(MUTATIONS)(changed, rng, pool)
        if not changed:
            changed += rng.choice(WORDS)
    return bytes(changed[:MAX_BYTES])


def structured(data: bytes, rng: random.Random) -> bytes | None:
    """Return a change that keeps the container's form, so that what lies deeper is reached."""
    if data.startswith(b"PK\x03\x04"):
        return _of_zip(data, rng)
    if data[:1] == b"\x80":
        return _of_pickle(data, rng)
    if data.lstrip()[:1] in (b"{", b"["):
        return _of_json(data, rng)
    if len(data) > 16 and data[8:12] == _masked(data[:8]):
        return _of_records(data, rng)
    return None


def _of_json(data: bytes, rng: random.Random) -> bytes | None:
    """Change one value or key of one JSON text: the whole file's, or a line's."""
    lines = [data]
    at = 0
    try:
        value = json.loads(data)
    except ValueError:
        lines = data.split(b"\n")
        at = rng.randrange(len(lines))
        try:
            value = json.loads(lines[at])
        except (ValueError, RecursionError):
            return None
    except RecursionError:
        return None
    lines[at] = json.dumps(_changed(value, rng)).encode()
    return b"\n".join(lines)


def _changed(value: object, rng: random.Random) -> object:
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        kind = rng.random()
        if kind < 0.1:
            return {name: item for name, item in value.items() if name != key}
        if kind < 0.2:
            return {**value, rng.choice(("", "\ud800", "x\ny", "9" * 40, "step")): value[key]}
        return {**value, key: _changed(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        if rng.random() < 0.2:
            return value[:at] + value[at : at + 1] * rng.choice((0, 2, 50)) + value[at + 1 :]
        return [*value[:at], _changed(value[at], rng), *value[at + 1 :]]
    if isinstance(value, int | float) and rng.random() < 0.5:
        return rng.choice((-value, value + 1, value * 1000, float(value), str(value)))
    return rng.choice(_JSON_VALUES)


def _of_zip(data: bytes, rng: random.Random) -> bytes | None:
    """Change one record, or the set of them, of an archive whose checksums hold."""
    held = io.BytesIO()
    try:
        with warnings.catch_warnings(), zipfile.ZipFile(io.BytesIO(data)) as source:
            warnings.simplefilter("ignore")  # two records of one name
            with zipfile.ZipFile(held, "w") as made:
                infos = source.infolist()
                at = rng.randrange(len(infos))
                for number, info in enumerate(infos):
                    body = source.read(info)
                    if number == at:
                        if rng.random() < 0.1:
                            continue
                        changed = structured(body, rng) if rng.random() < 0.8 else None
                        body = changed if changed is not None else mutant(body, rng, (body,))
                        if rng.random() < 0.1:
                            made.writestr(info.filename, body)
                    made.writestr(info.filename, body)
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError, IndexError, EOFError):
        return None
    return held.getvalue()


def _of_pickle(data: bytes, rng: random.Random) -> bytes | None:
    """Drop, double, swap or replace whole instructions of a pickle."""
    try:
        places = [place for _, _, place in pickletools.genops(data)]
    except (ValueError, pickle.UnpicklingError, IndexError):
        return None
    places.append(data.index(b".", places[-1]) + 1)
    steps = [data[a:b] for a, b in itertools.pairwise(places)]
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(1, max(2, len(steps)))
        other = rng.choice(steps)
        kind = rng.randrange(6)
        if kind == 0:
            del steps[at : at + 1]
        elif kind == 1:
            steps[at:at] = [other]
        elif kind == 2:
            steps[at : at + 1] = [other]
        elif kind == 3:
            steps[at:at] = [rng.choice(_OPCODES)] * rng.choice((1, 1, 2, 40))
        elif kind == 4:
            steps[at : at + 1] = [rng.choice(_OPCODES)]
        else:
            steps[at:at] = [rng.choice(_GREEDY)]
    return b"".join(steps) + data[places[-1] :]


_OPCODES = (
    b"2", b"0", b"1", b")", b"}", b"]", b"\x8f", b"(", b"t", b"\x85", b"\x86", b"\x87", b"s", b"u",
    b"a", b"e", b"\x90", b"\x91", b"R", b"\x81", b"\x92", b"b", b"N", b"\x88", b"K\x01", b"Q",
    b"J\xff\xff\xff\xff", b"h\x00", b"q\x00", b"\x94", b"G\x7f\xf8\0\0\0\0\0\0", b"\x8a\0", b".",
    b"cos\nsystem\n", b"cbuiltins\neval\n", b"cbuiltins\nstr\n", b"ctorch\nSize\n",
)  # fmt: skip
_GREEDY = (
    b")" + b"2\x86" * 40,  # a tuple of 2^40
    b"]" + b"2a" * 3,  # a list in itself
    b"\x8a\x09" + b"\xff" * 8 + b"\x0f",
    b"X\x04\0\0\0a\n\x1b[",
    b"r\xff\xff\xff\x0f",
    b"\x8e" + b"\xff" * 7 + b"\x00",
)


def _of_records(data: bytes, rng: random.Random) -> bytes:
    """Change the body of one TFRecord (an event of TensorBoard), its checksums made anew."""
    records, at = [], 0
    while at + 16 <= len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        if at + 16 + size > len(data):
            break
        records.append(data[at + 12 : at + 12 + size])
        at += 16 + size
    if not records:
        return data
    chosen = rng.randrange(len(records))
    records[chosen] = mutant(records[chosen], rng, records)
    return b"".join(map(_framed, records))


def _framed(body: bytes) -> bytes:
    length = struct.pack("<Q", len(body))
    return length + _masked(length) + body + _masked(body)


def _masked(data: bytes) -> bytes:
    from spiketriage.readers.telemetry.stores.crc32c import masked_of_bytes

    return struct.pack("<I", masked_of_bytes(data))


def _flip(data: bytearray, rng: random.Random, pool: Sequence[bytes]) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set(data: bytearray, rng: random.Random, pool: Sequence[bytes]) -> None:
    data[rng.randrange(len(data))] = rng.randrange(256)


def _cut(data: bytearray, rng: random.Random, pool: Sequence[bytes]) -> None:
    del data[rng.randrange(len(data)) :]


def _drop(data: bytearray, rng: random.Random, pool: Sequence[bytes]) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.choice(SPANS)]


def _double(data: bytearray, rng: random.Random, pool: Sequence[bytes]) -> None:
    at = rng.randrange(len(data))
    data[at:at] = data[at : at + rng.choice(SPANS)] * rng.choice((1, 1, 2, 5))


def _length(data: bytearray, rng: random.Random, pool: Sequence[bytes]) -> None:
    """Put an edge of a number's range where a length may stand."""
    at, number = rng.randrange(len(data)), rng.choice((*EDGES, rng.getrandbits(64)))
    size = rng.choice((1, 2, 4, 8))
    packed = (number & (1 << 8 * size) - 1).to_bytes(size, rng.choice(("little", "big")))
    data[at : at + size] = packed


def _insert(data: bytearray, rng: random.Random, pool: Sequence[bytes]) -> None:
    at = rng.randrange(len(data))
    data[at:at] = rng.choice(WORDS)


def _overwrite(data: bytearray, rng: random.Random, pool: Sequence[bytes]) -> None:
    at, word = rng.randrange(len(data)), rng.choice(WORDS)
    data[at : at + len(word)] = word


def _number(data: bytearray, rng: random.Random, pool: Sequence[bytes]) -> None:
    _replace(data, rng, _NUMBER, (*WORDS, b"0", b"-5", b"1e9", b"0.5"))


def _text(data: bytearray, rng: random.Random, pool: Sequence[bytes]) -> None:
    _replace(data, rng, _TEXT, (b"null", b"1", b"[]", b'""', b"1e999", b"NaN", b'"\\ud800"'))


def _replace(
    data: bytearray, rng: random.Random, pattern: re.Pattern[bytes], words: Sequence[bytes]
) -> None:
    found = pattern.search(data, rng.randrange(len(data)))
    if found is None:
        data[rng.randrange(len(data))] = rng.randrange(256)
    else:
        data[found.start() : found.end()] = rng.choice(words)


def _splice(data: bytearray, rng: random.Random, pool: Sequence[bytes]) -> None:
    """Put in a piece of another file, or lay it over."""
    other, at = rng.choice(pool), rng.randrange(len(data))
    begin = rng.randrange(len(other) + 1)
    piece = other[begin : begin + rng.choice(SPANS)]
    data[at : at + (len(piece) if rng.random() < 0.5 else 0)] = piece


def _fill(data: bytearray, rng: random.Random, pool: Sequence[bytes]) -> None:
    at = rng.randrange(len(data))
    size = len(data[at : at + rng.choice(SPANS)])
    data[at : at + size] = bytes([rng.choice((0, 0xFF, 0x20, rng.randrange(256)))]) * size


def _swap_lines(data: bytearray, rng: random.Random, pool: Sequence[bytes]) -> None:
    lines = data.split(b"\n")
    first, second = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[first], lines[second] = lines[second], lines[first]
    data[:] = b"\n".join(lines)


def _checksum(data: bytearray, rng: random.Random, pool: Sequence[bytes]) -> None:
    """A CRC-32 of something, where one may be looked for."""
    at = rng.randrange(len(data))
    data[at : at + 4] = struct.pack("<I", zlib.crc32(data[:at]))


MUTATIONS: tuple[Mutation, ...] = (
    _flip, _set, _cut, _drop, _double, _length, _insert, _overwrite, _number, _text, _splice,
    _fill, _swap_lines, _checksum,
)  # fmt: skip
