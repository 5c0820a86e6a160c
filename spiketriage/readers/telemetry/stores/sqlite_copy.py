"""Reads tables of an SQLite file that may still be written, from a copy in a folder of our own.

This module never opens the file itself with SQLite, never runs a view of it, and never works
without bound on it.
"""

from __future__ import annotations

import shlex
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from spiketriage.disk_room import room_bytes
from spiketriage.errors import CorruptFileError, EvidenceError, NoRoomError
from spiketriage.readers.telemetry.series.opening import open_log

MAGIC = b"SQLite format 3\0"
MAX_BYTES = 16 << 30
_COPY_BYTES = 1 << 20
_OPERATIONS = 1_000_000  # between two looks at the budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """A copy that can be asked, of so many bytes (None beside a log).

    `columns` is empty for what is no plain table.
    """

    path: Path
    connection: sqlite3.Connection
    size_bytes: int | None

    def damage(self) -> str:
        """What SQLite's own check of its pages, or their number in its header, finds wrong first.

        Empty for nothing.
        """
        try:
            verdict = str(self.connection.execute("PRAGMA quick_check(1)").fetchone()[0])
            num_pages, page_bytes = (
                int(self.connection.execute(f"PRAGMA {name}").fetchone()[0])
                for name in ("page_count", "page_size")
            )
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
            return f"its pages cannot be checked: {error}"
        if verdict != "ok":
            return f"SQLite's check finds it damaged: {' '.join(verdict.split())[:200]}"
        if self.size_bytes is not None and self.size_bytes != num_pages * page_bytes:
            return (
                f"size: expected {num_pages} pages of {page_bytes} bytes, found "
                f"{self.size_bytes} bytes"
            )
        return ""

    def columns(self, table: str) -> tuple[str, ...]:
        """The columns of a plain table."""
        kinds = self._rows("SELECT type FROM sqlite_master WHERE name = ?", (table,))
        if [row[0] for row in kinds] != ["table"]:
            return ()
        return tuple(
            str(row[0]) for row in self._rows("SELECT name FROM pragma_table_info(?)", (table,))
        )

    def select(
        self, table: str, columns: tuple[str, ...], problems: list[str]
    ) -> Iterator[tuple[object, ...]]:
        """The rows in the order they were written; damage ends them and becomes a problem."""
        assert all(name.isidentifier() for name in (table, *columns)), (
            "names of ours, not of the file"
        )
        query = f"SELECT {', '.join(columns)} FROM {table} ORDER BY rowid"
        try:
            yield from self.connection.execute(query)
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
            problems.append(f"table {table}: cannot be read to its end: {error}")

    def _rows(self, query: str, values: tuple[str, ...]) -> list[tuple[object, ...]]:
        try:
            return self.connection.execute(query, values).fetchall()
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
            raise EvidenceError(f"{self.path}: cannot be read as SQLite: {error}") from error


@contextmanager
def open_copy(path: Path) -> Iterator[Database]:
    """A copy of the database at `path` with its write-ahead log, if it has one.

    Raises:
        NoRoomError: the temporary folder has no room for it.
        EvidenceError: the file cannot be read, or is no SQLite database.
    """
    with tempfile.TemporaryDirectory(prefix="spiketriage-") as folder:
        copy = Path(folder, "copy.db")
        size_bytes = _copy(path, copy, MAGIC)
        log = path.with_name(path.name + "-wal")
        has_log = log.is_file() and log.stat().st_size > 0
        if has_log:
            size_bytes += _copy(log, copy.with_name("copy.db-wal"), b"")
        # An immutable database ignores its log; only a copy that has one is opened so that SQLite
        # may replay it.
        mode = "mode=rw" if has_log else "mode=ro&immutable=1"
        try:
            connection = sqlite3.connect(f"{copy.as_uri()}?{mode}", uri=True)
        except sqlite3.Error as error:
            raise EvidenceError(f"{path}: cannot be read as SQLite: {error}") from error
        with closing(connection):
            connection.text_factory = _text
            _restrict(connection, path, size_bytes)
            yield Database(
                path=path, connection=connection, size_bytes=None if has_log else size_bytes
            )


def _copy(source: Path, target: Path, magic: bytes) -> int:
    with open_log(source) as log:
        if not log.head.startswith(magic):
            raise CorruptFileError(
                source, "byte 0", expected=f"the magic {magic!r}", seen=log.head[:16]
            )
        if log.size_bytes > MAX_BYTES:
            raise CorruptFileError(
                source, "size", expected=f"at most {MAX_BYTES} bytes", seen=log.size_bytes
            )
        spare_bytes = max(0, room_bytes(target.parent))
        if log.size_bytes > spare_bytes:
            raise NoRoomError(
                f"{source}: is read from a copy, of {log.size_bytes} bytes, and the disk of "
                f"{target.parent.parent} has {spare_bytes} to spare",
                hint=f"df -h {shlex.quote(str(target.parent.parent))}",
            )
        num_left = log.size_bytes  # to where it ended when it was opened, however fast it grows
        with target.open("wb") as out:
            while piece := log.stream.read(min(_COPY_BYTES, num_left)):
                num_left -= out.write(piece)
        return log.size_bytes - num_left


def _restrict(connection: sqlite3.Connection, path: Path, size_bytes: int) -> None:
    """No writing, no code of the schema's, and an end to any query in proportion to the file."""
    left = [10 + size_bytes // 10_000]  # looks at the budget

    def is_over() -> bool:
        left[0] -= 1
        return left[0] < 0

    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA trusted_schema = OFF")
    except sqlite3.Error as error:
        raise EvidenceError(f"{path}: cannot be read as SQLite: {error}") from error
    connection.set_progress_handler(is_over, _OPERATIONS)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
