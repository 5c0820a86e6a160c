"""One command's stay in an incident: it holds the lease, buffers rows, adds them by whole swaps.

This module never reads results back and never changes or removes a row.
"""

from __future__ import annotations

import getpass
import shlex
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from spiketriage import __version__
from spiketriage.errors import Exit, RefusedError, SpiketriageError
from spiketriage.incident import database, journal, lease, seals, set_aside
from spiketriage.incident.rows import TABLES, Fact, Row, chained, pack
from spiketriage.nouns.checkpoint import MeasuredGeneration
from spiketriage.nouns.incident import (
    Anchors,
    Artifact,
    ExperimentRow,
    FileRow,
    Finding,
    Freeze,
    JournalRow,
    SettingRow,
    Spike,
    StepPoint,
    TrialRow,
    Verdict,
)

if TYPE_CHECKING:
    import duckdb

NOT_RECORDED = "ended without a record"
NO_EXIT_CODE = -1


class Session:
    """A context manager whose rows others see after `commit` or after a clean end.

    After an exception the rows since the last commit are dropped and the journal says what
    happened.
    """

    def __init__(self, folder: Path, argv: Sequence[str], *, journal: bool = True) -> None:
        self.folder = folder
        self.exit_code: int = Exit.DONE
        self.command = shlex.join(argv)  # as it was typed
        self.trusted = ""  # the code of the run that the command imports, once it does
        self._journal = journal
        self._lease: lease.Lease | None = None
        self._begun: list[FileRow] = []
        self._buffer: dict[str, list[Row]] = {name: [] for name in TABLES}

    def __enter__(self) -> Session:
        self._at = datetime.now(UTC).isoformat()
        self._started_s = time.monotonic()
        self._lease = lease.acquire(
            self.folder,
            who=_who(),
            command=self.command,
            since=self._at,
            journal=self._journal,
        )
        try:
            database.clean(self.folder)
            self._record_the_displaced(self._lease.displaced)
            self._record_what_was_set_aside()
        except BaseException:
            self._lease.release()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._lease is not None, "a session ends only after it began"
        try:
            if error is None:
                self._add("files", (replace(row, state="written") for row in self._begun))
                self._finish(journal.OUTCOMES.get(self.exit_code, f"exit {self.exit_code}"))
                return
            self._clear()
            self.exit_code = _exit_code(error)
            try:
                self._finish(f"{type(error).__name__}: {error}")
            except SpiketriageError as second:
                error.add_note(f"and the journal row could not be written: {second}")
        finally:
            self._lease.release()

    def fact(self, key: str, value: str) -> None:
        """Record a named sentence; a newer one of the same name supersedes it."""
        self._add("facts", (Fact(key=key, value=value),))

    def anchors(self, a: Anchors) -> None:
        """Record the anchors; newer ones supersede them."""
        self._add("anchors", (a,))

    def spike(self, spike: Spike) -> None:
        """Record the spike as a freeze found it; a newer one supersedes it."""
        self._add("spikes", (spike,))

    def generations(self, rows: Iterable[MeasuredGeneration]) -> None:
        """Record what was measured of generations; a newer row of the same name supersedes."""
        self._add("generations", rows)

    def frozen(self, freeze: Freeze) -> None:
        """Record how a freeze ended."""
        self._add("freezes", (freeze,))

    def begin_writing(self, folders: Iterable[str]) -> None:
        """Make known which folders below the incident's the command writes in, before it does.

        Whatever it leaves there when it is killed is explained by that.
        """
        begun = [FileRow(path=path, state="begun") for path in folders]
        self._begun += begun
        self._add("files", begun)
        self.commit()

    def wrote(self, digests: Mapping[str, str]) -> None:
        """Record files that the command wrote, by path below the incident's folder and SHA-256."""
        for path in sorted(digests):
            row = FileRow(path=path, state="written", sha256=digests[path])
            self._add("files", (row,))

    def removed(self, paths: Iterable[str]) -> None:
        """Record files that earlier commands wrote and this one removed."""
        self._add("files", (FileRow(path=path, state="removed") for path in paths))

    def artifacts(self, rows: Iterable[Artifact]) -> None:
        """Record evidence; a newer row of the same path supersedes."""
        self._add("artifacts", rows)

    def findings(self, rows: Iterable[Finding]) -> None:
        """Record findings; a newer row of the same name supersedes."""
        self._add("findings", rows)

    def trials(self, rows: Iterable[TrialRow]) -> None:
        """Record trials; a newer row of the same key supersedes."""
        self._add("trials", rows)

    def steps(self, rows: Iterable[StepPoint]) -> None:
        """Record steps of production; a newer row of the same attempt and step supersedes."""
        self._add("steps", rows)

    def verdict(self, v: Verdict) -> None:
        """Record the verdict; a newer one supersedes it."""
        self._add("verdicts", (v,))

    def setting(self, row: SettingRow) -> None:
        """Record what the experiments start from; a newer setting supersedes it."""
        self._add("setting", (row,))

    def experiments(self, rows: Iterable[ExperimentRow]) -> None:
        """Record what can be tried; a newer row of the same experiment supersedes."""
        self._add("experiments", rows)

    def commit(self) -> None:
        """Make the buffered rows visible in one swap; without any there is nothing to do.

        Raises:
            BusyError: the lease was lost.
            EvidenceError, RefusedError: the database or its folder cannot be written; the rows stay
            buffered.
        """
        if any(self._buffer.values()):
            self._swap(None)
            self._clear()

    def _add(self, table: str, records: Iterable[Any]) -> None:
        self._buffer[table].extend(pack(record) for record in records)

    def _clear(self) -> None:
        for rows in self._buffer.values():
            rows.clear()

    def _finish(self, outcome: str) -> None:
        if not self._journal:
            self.commit()
            return
        row = self._journal_row(outcome, self.exit_code, time.monotonic() - self._started_s)
        self._swap(row)
        self._clear()

    def _record_the_displaced(self, holder: lease.Holder | None) -> None:
        """A command that was killed could not write its journal row: its successor does, once."""
        if holder is None or not holder.journal:
            return
        with database.reading(self.folder) as connection:
            rows = database.journal_rows(connection)
        if any((row.at, row.host, row.argv) == _key(holder) for row in rows):
            return
        row = JournalRow(
            number=0,
            at=holder.since,
            who=holder.who,
            host=holder.host,
            argv=holder.command,
            version=__version__,
            outcome=NOT_RECORDED,
            exit_code=NO_EXIT_CODE,
            duration_s=0.0,
            previous="",
            digest="",
        )
        self._swap(row)

    def _record_what_was_set_aside(self) -> None:
        """A row of the journal for every client of somebody else's that wrote to the record."""
        try:
            set_aside.move(self.folder / database.NAME)
        except OSError as error:
            raise RefusedError(
                f"{self.folder}: the incident cannot be written: {error.strerror or error}"
            ) from error
        names = set_aside.names(self.folder)
        if not names:
            return
        with database.reading(self.folder) as connection:
            recorded = {row.argv for row in database.journal_rows(connection)}
        for name in names:
            argv = (
                f"(set aside in {set_aside.FOLDER}/{name}: what a DuckDB client had open or left)"
            )
            if argv not in recorded:
                self._swap(replace(self._journal_row("done", Exit.DONE, 0.0), argv=argv))

    def _journal_row(self, outcome: str, exit_code: int, duration_s: float) -> JournalRow:
        return JournalRow(
            number=0,
            at=self._at,
            who=_who(),
            host=socket.gethostname(),
            argv=_utf8(self.command),
            version=__version__,
            outcome=_utf8(outcome),
            exit_code=exit_code,
            duration_s=duration_s,
            trusted=_utf8(self.trusted),
            previous="",
            digest="",
        )

    def _swap(self, row: JournalRow | None) -> None:
        assert self._lease is not None, "rows are written inside the session only"

        def write(connection: duckdb.DuckDBPyConnection) -> None:
            before = next(iter(database.journal_rows(connection, newest=1)), None)
            if self._journal:
                command = (before.number if before else 0) + 1
            else:
                command = 0
            for table, rows in self._buffer.items():
                _append(connection, table, rows, command)
            if row is None:
                return
            filled = replace(row, heads=seals.heads(connection))
            database.insert(connection, "journal", [asdict(journal.sealed(filled, before))])

        database.swap(self.folder, write, may_replace=self._lease.check)


def _append(
    connection: duckdb.DuckDBPyConnection, table: str, rows: list[Row], command: int
) -> None:
    """Add `rows` at the end of `table`."""
    if not rows:
        return
    last = database.select(
        connection, f"SELECT number, digest FROM {table} ORDER BY number DESC LIMIT 1"
    )
    number, previous = (last[0]["number"], last[0]["digest"]) if last else (0, journal.START)
    added = chained(rows, last_number=number, previous=previous, command=command)
    database.insert(connection, table, added)


def _key(holder: lease.Holder) -> tuple[str, str, str]:
    """What tells a holder's journal row from every other."""
    return holder.since, holder.host, holder.command


def _exit_code(error: BaseException) -> int:
    if isinstance(error, SpiketriageError):
        return error.exit_code
    if isinstance(error, SystemExit):
        if isinstance(error.code, int):
            return error.code
        return int(error.code is not None)
    if isinstance(error, KeyboardInterrupt):
        return Exit.INTERRUPTED
    return Exit.BUG


def _who() -> str:
    with suppress(KeyError, OSError):  # a container may run under a number that has no name
        return getpass.getuser()
    return "unknown"


def _utf8(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
