"""All telemetry scalars as one wide Parquet file, for whoever wants more than the incident's tables hold.

This module never decides what is production; it only marks it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spiketriage.readers.telemetry.lineage import Telemetry
from spiketriage.records import StepRecord

BUCKET_STEPS = 2000  # rank-major inside a bucket: a step window and one rank's line are both cheap to read


def write_parquet(telemetry: Telemetry, path: Path) -> None:
    """Write every record of every attempt, one row each and one column a metric."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    records = sorted((record for segment in telemetry.segments for record in segment.steps), key=_order)
    names = sorted({name for record in records for name in record.metrics})
    columns: dict[str, Any] = {
        "rank": pa.array([record.rank for record in records], pa.int32()),
        "step": pa.array([record.step for record in records], pa.int64()),
        "attempt": pa.array([record.attempt for record in records], pa.int32()),
        "production": pa.array([telemetry.at(record.rank, record.step) is record for record in records], pa.bool_()),
        "wall_time_s": pa.array([record.wall_time_s for record in records], pa.float64()),
        "num_nonfinite": pa.array([len(record.nonfinite) for record in records], pa.int32()),
    }
    for name in names:
        columns[name] = pa.array([record.metrics.get(name) for record in records], pa.float64())
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.partial")
    pq.write_table(pa.table(columns), draft, compression="zstd")
    draft.replace(path)


def _order(record: StepRecord) -> tuple[int, int, int, int]:
    return record.step // BUCKET_STEPS, record.rank, record.step, record.attempt
