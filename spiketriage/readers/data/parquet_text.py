"""Reads Parquet corpora: a column of text, of messages or of token ids, row by row, with pyarrow.

This module never loads a whole file or row group, and never trusts a page whose checksum is there
and wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from spiketriage.errors import CorruptFileError, EvidenceError, RefusedError
from spiketriage.nouns.data import DataFacts
from spiketriage.nouns.series import Integers
from spiketriage.readers.data import disk
from spiketriage.readers.data.text_fields import FIELDS, TOKEN_FIELDS, tokens_of
from spiketriage.readers.limited import limited
from spiketriage.readers.look import Look, look_at_file

NAME = "parquet-text"
TELLS = (
    "Every row's text or token ids, files cut short, and pages whose checksum is wrong where "
    "one was written."
)
CANNOT = (
    "The place of a single row on disk (only its row group's), or the order in which a run "
    "read the rows."
)

MAGIC = b"PAR1"
SUFFIXES = (".parquet",)
ROWS_AT_ONCE = 64
MAX_STRING_BYTES = 100_000_000
MAX_EXPANSION = 200  # text rarely shrinks tenfold


def claims(seen: Look) -> float:
    """The magic of Parquet, or a folder with such a file."""
    if not seen.is_folder:
        if seen.head.startswith(MAGIC):
            return 0.8
        if seen.path.suffix in SUFFIXES:
            return 0.3
        return 0.0
    first = next((name for name in seen.names if name.endswith(SUFFIXES)), None)
    if first is not None and disk.head_of(seen.path / first).startswith(MAGIC):
        return 0.7
    return 0.0


def read(path: Path) -> DataFacts:
    """The corpus at `path`: a file, or the files of a folder in the order of their names.

    Raises:
        EvidenceError: no such file, or none that can be read.
    """
    root = path if disk.is_folder(path) else path.parent
    parts = _parts(path)
    problems: list[str] = []
    num_rows, columns = 0, set()
    for part in parts:
        try:
            num_rows += _num_rows(part)
            columns.add(_column(part))
        except EvidenceError as error:
            if len(parts) == 1:
                raise
            problems.append(error.message)
    kinds = ["integers" if name in TOKEN_FIELDS else "utf-8" for name in sorted(columns)]
    note = (
        "a row's place is its row group's, and its digest is of the row's values: rows have no "
        "bytes of their own"
    )
    return DataFacts(
        format=NAME,
        path=path,
        files=disk.stored_files(root, parts),
        num_documents=num_rows if not problems else None,
        num_tokens=None,
        dtype=" and ".join(sorted(set(kinds))),
        problems=tuple(problems),
        notes=(note,),
    )


def count(path: Path, /, *, eos: int | None = None) -> int:
    """How many rows the corpus has; `eos` plays no part.

    Raises:
        EvidenceError: a file cannot be read.
    """
    return sum(_num_rows(part) for part in _parts(path))


def document(path: Path, number: int, /) -> Integers:
    """The UTF-8 bytes (or the token ids) of one row.

    Raises:
        EvidenceError: there is no such row, or it cannot be read.
    """
    return stored(path, number).tokens


def stored(path: Path, number: int, /, *, eos: int | None = None) -> disk.StoredDocument:
    """One row, at the place of its row group.

    Its digest is of its values: little-endian 64-bit ids, or the bytes of text.

    Raises:
        EvidenceError: there is no such row, or it cannot be read.
    """
    parts = _parts(path)
    where = disk.place(path, [_num_rows(part) for part in parts], number)
    part = parts[where.part]
    name = _column(part)
    tokens, span = _row(part, where.number, name)
    if len(tokens) > disk.MAX_DOCUMENT_BYTES:
        expected = f"at most {disk.MAX_DOCUMENT_BYTES} bytes or ids"
        raise CorruptFileError(part, f"row {where.number}", expected=expected, seen=len(tokens))
    data = tokens.astype("<i8" if name in TOKEN_FIELDS else "u1").tobytes()
    row = disk.document_of(part.name, 0, data, tokens)
    return replace(row, start=span.start, end=span.stop)


def documents_of_step(
    path: Path, step: int, global_batch: int, sequence_length: int, /, *, eos: int | None = None
) -> tuple[int, ...]:
    """Never known: a corpus does not hold the order in which a loader packed and shuffled it.

    Raises:
        RefusedError: always.
    """
    missing = (
        "a corpus does not say which rows a step read: the loader tokenizes, packs and "
        "shuffles them"
    )
    raise RefusedError(f"{path}: {missing}", hint="give the index of the tokenized data set")


def _parts(path: Path) -> tuple[Path, ...]:
    parts = disk.parts_of(path, SUFFIXES)
    if not parts:
        raise EvidenceError(f"{path}: holds no .parquet file")
    return parts


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The open file; whatever pyarrow says about it, then or later, becomes one error.

    Raises:
        EvidenceError: it cannot be read.
    """
    import pyarrow as arrow
    from pyarrow import parquet

    if not look_at_file(path).head.startswith(MAGIC):
        raise CorruptFileError(path, "start", expected="PAR1", seen=look_at_file(path).head[:4])
    try:
        with path.open("rb") as stream:
            yield parquet.ParquetFile(
                stream,
                memory_map=False,
                pre_buffer=False,
                page_checksum_verification=True,
                thrift_string_size_limit=MAX_STRING_BYTES,
                arrow_extensions_enabled=False,
            )
    except (
        arrow.ArrowException,
        OSError,
        ValueError,
        KeyError,
        IndexError,
        OverflowError,
        MemoryError,
    ) as error:
        lines = (str(error) or type(error).__name__).splitlines()
        raise EvidenceError(f"{path}: cannot be read as Parquet: {lines[0][:300]}") from error


@disk.once_a_file
@limited
def _num_rows(path: Path) -> int:
    with _opened(path) as file:
        groups = []
        for group in range(file.metadata.num_row_groups):
            groups.append(file.metadata.row_group(group).num_rows)
        total = int(file.metadata.num_rows)
    if sum(groups) != total or any(rows < 0 for rows in groups):
        raise CorruptFileError(
            path, "rows", expected=f"{total} as the footer says", seen=sum(groups)
        )
    return total


@disk.once_a_file
@limited
def _column(path: Path) -> str:
    with _opened(path) as file:
        names = list(file.schema_arrow.names)
    for name in FIELDS:
        if name in names:
            return name
    seen = ", ".join(names[:8])
    raise CorruptFileError(path, "columns", expected=f"one of {', '.join(FIELDS)}", seen=seen)


@limited
def _row(path: Path, number: int, name: str) -> tuple[Integers, range]:
    """The bytes or ids of a row, and the bytes of the file in which its row group lies."""
    with _opened(path) as file:
        group, number_in_group = _group_of(file, number)
        value = _value(file, group, number_in_group, name)
        span = _span(file, group)
    tokens = tokens_of({name: value})
    if tokens is None:
        raise CorruptFileError(
            path, f"row {number}", expected=f"a value in {name}", seen=type(value).__name__
        )
    return tokens, span


def _group_of(file: Any, number: int) -> tuple[int, int]:
    """The row group of a row, and the row's number in it."""
    for group in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if number < rows:
            return group, number
        number -= rows
    raise ValueError(f"has no row {number}")


def _value(file: Any, group: int, row: int, name: str) -> Any:
    whole = file.metadata.row_group(group)
    for column in range(whole.num_columns):
        chunk = whole.column(column)
        unpacked = chunk.total_uncompressed_size
        most = max(disk.MAX_DOCUMENT_BYTES, MAX_EXPANSION * chunk.total_compressed_size)
        if chunk.path_in_schema.partition(".")[0] == name and unpacked > most:
            raise ValueError(
                f"row group {group} expands to {unpacked} bytes, which is not unpacked"
            )
    at = 0
    for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, row_groups=[group], columns=[name]):
        if row < at + batch.num_rows:
            return batch.column(0)[row - at].as_py()
        at += batch.num_rows
    raise ValueError(f"row group {group} ends at row {at}")


def _span(file: Any, group: int) -> range:
    """The bytes of a row group, from its first column's first page to its last column's end."""
    whole = file.metadata.row_group(group)
    starts, ends = [], []
    for number in range(whole.num_columns):
        chunk = whole.column(number)
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        starts.append(start)
        ends.append(start + chunk.total_compressed_size)
    return range(min(starts, default=0), max(ends, default=0))
