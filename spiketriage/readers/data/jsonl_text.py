"""Reads corpora of one JSON object a line: text, messages or token ids.

This module never unpacks a compressed corpus and never keeps more of it than one line.
"""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

from spiketriage.errors import CorruptFileError, EvidenceError, RefusedError
from spiketriage.nouns.data import DataFacts
from spiketriage.nouns.series import Integers
from spiketriage.readers.data import disk
from spiketriage.readers.data.borders import Borders, Stream, borders
from spiketriage.readers.data.text_fields import FIELDS, tokens_of
from spiketriage.readers.json_file import parse_object
from spiketriage.readers.look import LFS_HEAD, Look, look_at_file

NAME = "jsonl-text"
TELLS = (
    "Every document's place and text, a torn last line, and lines that a damaged disk filled "
    "with zeros."
)
CANNOT = (
    "The tokens behind the text, the order in which a run read the lines, or anything inside a "
    "compressed file."
)

SUFFIXES = (".jsonl", ".ndjson", ".json")
MAX_TRIED = 8  # files of a folder, of which the first may be damaged
PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}
FIELD = re.compile(rb'"(?:' + "|".join(FIELDS).encode() + rb')"\s*:\s*["\[]')
METRIC = re.compile(rb'"(?:loss|step|lr|learning_rate|grad_norm)"\s*:\s*-?[\d.NI]')


def claims(seen: Look) -> float:
    """A first line that is an object with text, messages or token ids, or a packed file of them."""
    if not seen.is_folder:
        return _claim(seen.path.name.lower(), seen.head)
    names = [name for name in seen.names if name.lower().endswith(SUFFIXES[:2])]
    claimed = [_claim(name.lower(), disk.head_of(seen.path / name)) for name in names[:MAX_TRIED]]
    return 0.8 * max(claimed, default=0.0)


def _claim(name: str, head: bytes) -> float:
    if _packing(head):
        if any(f"{suffix}." in name for suffix in SUFFIXES[:2]):
            return 0.6
        return 0.0
    if head.startswith(LFS_HEAD) or not head:
        return 0.2 if name.endswith(SUFFIXES[:2]) else 0.0
    line, _, rest = head.lstrip().partition(b"\n")
    if not line.startswith(b"{") or not FIELD.search(line) or METRIC.search(line):
        return 0.0
    if rest and not rest.lstrip().startswith(b"{"):
        return 0.0
    if name.endswith(SUFFIXES):
        return 0.85
    return 0.6


def read(path: Path) -> DataFacts:
    """The corpus at `path`, a file or the files of a folder, with its first and last line read.

    Raises:
        EvidenceError: no such file, or one that cannot be read.
    """
    parts = _parts(path)
    root = path if disk.is_folder(path) else path.parent
    plain, closed = [], []
    for part in parts:
        packing = _packing(look_at_file(part).head)
        if packing:
            closed.append(f"{part.name} is compressed with {packing}: its lines are not read")
        else:
            plain.append(part)
    bytewise = "text counts by the bytes of its UTF-8, since the tokenizer is not known here"
    return DataFacts(
        format=NAME,
        path=path,
        files=disk.stored_files(root, parts),
        num_documents=None if closed else sum(_open(part).num_items for part in plain),
        num_tokens=None,
        dtype="utf-8" if plain else "",
        problems=tuple(chain.from_iterable(map(_problems, plain))),
        notes=(*closed, bytewise),
    )


def count(path: Path, /, *, eos: int | None = None) -> int:
    """How many lines the corpus has; `eos` plays no part.

    Raises:
        EvidenceError: it cannot be read or is compressed.
    """
    return sum(_open(part).num_items for part in _parts(path))


def document(path: Path, number: int, /) -> Integers:
    """The UTF-8 bytes (or the token ids) of the document in one line.

    Raises:
        EvidenceError: there is no such line, or it holds no document.
    """
    return stored(path, number).tokens


def stored(path: Path, number: int, /, *, eos: int | None = None) -> disk.StoredDocument:
    """One line with its place, without its line end; `eos` plays no part.

    Raises:
        EvidenceError: there is no such line, or it holds no document.
    """
    parts = _parts(path)
    lines = [_open(part) for part in parts]
    where = disk.place(path, [borders.num_items for borders in lines], number)
    return _line(parts[where.part], lines[where.part], where.number)


def documents_of_step(
    path: Path, step: int, global_batch: int, sequence_length: int, /, *, eos: int | None = None
) -> tuple[int, ...]:
    """Never known: a corpus does not hold the order in which a loader packed and shuffled it.

    Raises:
        RefusedError: always.
    """
    missing = (
        "a corpus of text does not say which lines a step read: the loader tokenizes, packs "
        "and shuffles them"
    )
    raise RefusedError(f"{path}: {missing}", hint="give the index of the tokenized data set")


def _packing(head: bytes) -> str:
    """What a file that begins so is compressed with; empty if it is not."""
    for magic, name in PACKED.items():
        if head.startswith(magic):
            return name
    return ""


def _parts(path: Path) -> tuple[Path, ...]:
    parts = disk.parts_of(path, SUFFIXES[:2])
    if not parts:
        raise EvidenceError(f"{path}: holds no file of lines of JSON (.jsonl or .ndjson)")
    return parts


def _open(path: Path) -> Borders:
    seen = look_at_file(path)
    packing = _packing(seen.head)
    if packing:
        raise EvidenceError(
            f"{path}: is compressed with {packing}, which is not read", hint="unpack a copy of it"
        )
    stream = Stream(
        path=path,
        start=0,
        end=seen.size_bytes,
        dtype="|u1",
        separator=ord("\n"),
        may_open=False,
        forbidden=0,
    )
    return borders(stream)


def _line(path: Path, lines: Borders, number: int) -> disk.StoredDocument:
    start, where = lines.start_of(number), f"line {number + 1}"
    data = disk.read_range(path, start, lines.start_of(number + 1), where).removesuffix(b"\n")
    try:
        tokens = tokens_of(parse_object(path, data))
    except CorruptFileError as error:
        raise EvidenceError(f"{error.message} ({where}, byte {start})", hint=error.hint) from error
    if tokens is None:
        raise CorruptFileError(
            path, where, expected=f"one of the fields {', '.join(FIELDS)}", seen="none of them"
        )
    return disk.document_of(path.name, start, data, tokens)


def _problems(path: Path) -> list[str]:
    lines = _open(path)
    if not lines.num_items:
        return [f"{path.name}: is empty, expected lines of JSON"]
    problems: list[str] = []
    for number in sorted({0, lines.num_items - 1}):
        try:
            _line(path, lines, number)
        except EvidenceError as error:
            torn = ""
            if number and not lines.closed:
                torn = " (no line end follows: the line is torn)"
            problems.append(f"{error.message}{torn}")
    if lines.first_forbidden is not None:
        problems.append(
            f"{path.name}: byte {lines.first_forbidden} is zero, which text never holds: a "
            "page was lost"
        )
    return problems
