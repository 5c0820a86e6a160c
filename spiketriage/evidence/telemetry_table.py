"""All telemetry scalars as one wide Parquet file, beyond what the incident's tables hold.

This module never decides what is production; it only marks it. It holds a bucket of steps at a
time, never the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from spiketriage.nouns.series import Integers
from spiketriage.nouns.telemetry import StepRecord
from spiketriage.readers.telemetry.run.lineage import Telemetry

Table = Any  # of pyarrow, which only its callers load
# rank-major inside a bucket: a step window and a rank's line are both cheap to read
BUCKET_STEPS = 2000
PAGE_ROWS = BUCKET_STEPS  # a rank's rows of a bucket are one page, which the page index finds
# several a bucket at 1,024 ranks, so that two threads share it; larger footers cost more
ROW_GROUP_ROWS = 1 << 19
FEW_ROWS = 1 << 17  # buckets of small runs share a row group until it holds this many
KEYS = ("source", "attempt", "rank", "step", "production", "wall_time_s", "num_nonfinite")


def write_parquet(rows: Telemetry | Iterable[Table], path: Path) -> None:
    """Write every row of every attempt, one column a metric; nonfinite values stay what they are.

    Tables have equal columns, `attempt`, `rank` and `step` among them, in any order inside; each
    holds whole buckets of steps, all later than those of the table before.
    """
    tables = _tables(rows) if isinstance(rows, Telemetry) else rows
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.partial")
    try:
        _write(tables, draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def column_names(metrics: Iterable[str]) -> Mapping[str, str]:
    """The column of each metric.

    Its name, but for one that the table's keys take (SQL ignores case).
    """
    taken = {name.casefold() for name in KEYS}
    columns: dict[str, str] = {}
    for metric in metrics:
        column = metric
        while column.casefold() in taken:
            column = f"metric/{column}"
        taken.add(column.casefold())
        columns[metric] = column
    return columns


def _write(tables: Iterable[Table], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer: Any = None
    try:
        for table in _ordered(tables):
            writer = writer or pq.ParquetWriter(path, table.schema, **_layout(table.schema))
            for start, end in _row_groups(table):
                writer.write_table(table.slice(start, end - start), row_group_size=ROW_GROUP_ROWS)
        if writer is None:
            pq.write_table(
                pa.table({name: pa.array([], pa.int64()) for name in ("attempt", "rank", "step")}),
                path,
            )
    finally:
        if writer is not None:
            writer.close()


def _layout(schema: Any) -> dict[str, Any]:
    """How columns are stored: 1,024 ranks × 100,000 steps answer in 40 to 60 ms on two quiet cores.

    What `tests/bench/bench_telemetry_table.py` asks took 80 to 105 ms with zstd and pages of
    pyarrow's size, and as long as this in a table of DuckDB's own, which is twice as large.
    Doubles have no minimum and maximum: those leave NaN out, and a reader that trusts them skips
    the very rows that somebody asks for with `isnan(…)` or `> 100`.
    """
    import pyarrow as pa

    doubles = [field.name for field in schema if pa.types.is_floating(field.type)]
    keys = [field.name for field in schema if field.name not in doubles]
    return {
        "compression": "lz4",
        "use_dictionary": [name for name in keys if name not in {"step", "production"}],
        "column_encoding": dict.fromkeys(doubles, "BYTE_STREAM_SPLIT")
        | {"step": "DELTA_BINARY_PACKED"},
        "write_statistics": keys,
        "write_page_index": True,
        "max_rows_per_page": PAGE_ROWS,
    }


def _ordered(tables: Iterable[Table]) -> Iterator[Table]:
    """The same rows in order, small tables put together."""
    import pyarrow as pa

    pending: list[Table] = []
    last_bucket: int | None = None
    for table in tables:
        if not table.num_rows:
            continue
        buckets = _buckets(table)
        assert last_bucket is None or int(buckets.min()) > last_bucket, (
            "a bucket of steps is in two tables"
        )
        last_bucket = int(buckets.max())
        pending.append(table)
        if sum(small.num_rows for small in pending) >= FEW_ROWS:
            yield _sorted(pa.concat_tables(pending))
            pending = []
    if pending:
        yield _sorted(pa.concat_tables(pending))


def _sorted(table: Table) -> Table:
    keys = (_buckets(table), *(_integers(table, name) for name in ("rank", "step", "attempt")))
    undecided = np.ones(max(table.num_rows - 1, 0), np.bool_)
    for key in keys:
        if (undecided & (key[1:] < key[:-1])).any():
            return table.take(np.lexsort(keys[::-1]))
        undecided &= key[1:] == key[:-1]
    return table


def _row_groups(table: Table) -> Iterator[tuple[int, int]]:
    """Ranges of rows that end where a rank's rows of a bucket end, if those are not too many."""
    buckets, ranks = _buckets(table), _integers(table, "rank")
    ends = np.append(
        np.flatnonzero((buckets[1:] != buckets[:-1]) | (ranks[1:] != ranks[:-1])) + 1,
        table.num_rows,
    )
    start = 0
    while start < table.num_rows:
        limit = start + ROW_GROUP_ROWS
        position = int(np.searchsorted(ends, limit, side="right")) - 1
        if position >= 0 and ends[position] > start:
            end = int(ends[position])
        else:
            end = min(limit, table.num_rows)
        yield start, end
        start = end


def _buckets(table: Table) -> Integers:
    return _integers(table, "step") // BUCKET_STEPS


def _integers(table: Table, name: str) -> Integers:
    column: Integers = table[name].fill_null(-1).to_numpy().astype(np.int64, copy=False)
    return column


def _tables(telemetry: Telemetry) -> Iterator[Table]:
    """The records of all segments, a table a bucket."""
    records: list[StepRecord] = []
    for segment in telemetry.segments:
        records += segment.steps
    records.sort(key=_order)
    metrics: set[str] = set()
    for record in records:
        metrics.update(record.metrics)
    columns = column_names(sorted(metrics))
    for _, bucket in groupby(records, key=lambda record: record.step // BUCKET_STEPS):
        yield _table(telemetry, list(bucket), columns)


def _order(record: StepRecord) -> tuple[int, int, int, int]:
    return record.step // BUCKET_STEPS, record.rank, record.step, record.attempt


def _table(
    telemetry: Telemetry, records: Sequence[StepRecord], columns: Mapping[str, str]
) -> Table:
    import pyarrow as pa

    keys = {
        "attempt": pa.array([record.attempt for record in records], pa.int64()),
        "rank": pa.array([record.rank for record in records], pa.int64()),
        "step": pa.array([record.step for record in records], pa.int64()),
        "production": pa.array(
            [telemetry.at(record.rank, record.step) is record for record in records], pa.bool_()
        ),
        "wall_time_s": pa.array([record.wall_time_s for record in records], pa.float64()),
        "num_nonfinite": pa.array([len(record.nonfinite) for record in records], pa.int64()),
    }
    metrics = {}
    for metric, column in columns.items():
        metrics[column] = pa.array([record.metrics.get(metric) for record in records], pa.float64())
    return pa.table({**keys, **metrics})
