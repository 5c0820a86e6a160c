"""How long a colleague waits for an answer from the telemetry of 1,024 ranks × 100,000 steps.

Run it as `python tests/bench/bench_telemetry_table.py`; it never keeps the gigabytes that it
writes.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from spiketriage.evidence.telemetry_table import BUCKET_STEPS, write_parquet
from spiketriage.incident.query import query
from spiketriage.incident.store import Incident, create

BLOCK_RANKS = 64  # one draw of random numbers, so that both orders hold the same rows
TARGETED_MS, WHOLE_MS = 100.0, 2000.0
BOUND = 0.35
SQL, PEER, ARROW = (
    "spiketriage sql",
    "one file by (rank, step), same DuckDB",
    "pyarrow.dataset on ours",
)
LOSS, NORM = '"loss/mean"', '"grad/norm"'
Rows = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One query: as SQL, the same for pyarrow, and how long it may take."""

    name: str
    sql: str
    arrow: Callable[[ds.Dataset], Rows]
    target_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One answer: how long it took, and what all threads of this process used meanwhile."""

    wall_ms: float
    cpu_ms: float


def main(words: Sequence[str] | None = None) -> int:
    """Write both files, time every question on every reader in turn, print the table.

    1 when a target is missed.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="where about 3 GB are written and removed")
    options = parser.parse_args(words)
    if options.ranks < 1 or options.steps < 2 * BUCKET_STEPS or options.steps % BUCKET_STEPS:
        parser.error(
            f"expected at least a rank and two times {BUCKET_STEPS} steps, in multiples of "
            f"{BUCKET_STEPS}"
        )
    pa.set_cpu_count(2)  # as many as DuckDB is given
    with tempfile.TemporaryDirectory(dir=options.folder) as work:
        return _measure(Path(work), options.ranks, options.steps, options.repeats)


def _measure(work: Path, num_ranks: int, num_steps: int, num_repeats: int) -> int:
    print(
        f"{num_ranks:,} ranks × {num_steps:,} steps × 2 metrics = "
        f"{num_ranks * num_steps / 1e6:,.1f} M rows\n"
    )
    ours, peer = (_incident(work / name) for name in ("ours", "peer"))
    _timed_write(
        "ours, bucket by bucket",
        _path(ours),
        lambda path: write_parquet(_buckets(num_ranks, num_steps), path),
    )
    _timed_write(
        "peer, rank by rank", _path(peer), lambda path: _write_peer(path, num_ranks, num_steps)
    )
    dataset = _path(ours)
    questions = _questions(num_ranks, num_steps)
    asked: dict[str, Callable[[Question], Rows]] = {
        SQL: lambda question: list(query(ours, question.sql).rows),
        PEER: lambda question: list(query(peer, question.sql).rows),
        ARROW: lambda question: question.arrow(ds.dataset(dataset)),
    }
    _agree(questions, asked)
    return _told(questions, _interleaved(questions, asked, num_repeats))


def _agree(questions: Sequence[Question], asked: dict[str, Callable[[Question], Rows]]) -> None:
    """Warm up, and make sure that all readers answer the same."""
    for question in questions:
        answers = {name: ask(question) for name, ask in asked.items()}
        if any(answer != answers[SQL] for answer in answers.values()):
            raise SystemExit(f"{question.name}: the readers disagree")


def _interleaved(
    questions: Sequence[Question], asked: dict[str, Callable[[Question], Rows]], num_repeats: int
) -> dict[tuple[str, str], list[Timing]]:
    timings: dict[tuple[str, str], list[Timing]] = {
        (q.name, name): [] for q in questions for name in asked
    }
    for _ in range(num_repeats):
        for question in questions:
            for name, ask in asked.items():
                wall_s, cpu_s = time.perf_counter(), time.process_time()
                ask(question)
                wall_ms, cpu_ms = (
                    (time.perf_counter() - wall_s) * 1e3,
                    (time.process_time() - cpu_s) * 1e3,
                )
                timings[question.name, name].append(Timing(wall_ms=wall_ms, cpu_ms=cpu_ms))
    return timings


def _told(questions: Sequence[Question], timings: dict[tuple[str, str], list[Timing]]) -> int:
    print(
        f"\nmedian ms of {len(next(iter(timings.values())))} (fastest–slowest) after a "
        "warm-up; CPU is of all threads"
    )
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    print(f"| query | {SQL} | its CPU | {PEER} | {ARROW} | target |\n|---|---|---|---|---|---|")
    missed = False
    for question in questions:
        ours = timings[question.name, SQL]
        is_met = statistics.median(timing.wall_ms for timing in ours) <= question.target_ms
        missed |= not is_met
        cells = [question.name, _spelled([timing.wall_ms for timing in ours])]
        cells += [_spelled([timing.cpu_ms for timing in ours])]
        cells += [
            _spelled([timing.wall_ms for timing in timings[question.name, peer]])
            for peer in (PEER, ARROW)
        ]
        cells += [f"≤ {question.target_ms:.0f}: {'met' if is_met else 'MISSED'}"]
        print(f"| {' | '.join(cells)} |")
    return int(missed)


def _spelled(milliseconds: Sequence[float]) -> str:
    return (
        f"{statistics.median(milliseconds):.0f} ({min(milliseconds):.0f}–{max(milliseconds):.0f})"
    )


def _questions(num_ranks: int, num_steps: int) -> tuple[Question, ...]:
    step, rank = num_steps // 2 + BUCKET_STEPS // 3, num_ranks // 2
    edge = num_steps // 2 // BUCKET_STEPS * BUCKET_STEPS  # a bucket begins here
    return (
        Question(
            name="one step, all ranks",
            sql=f"SELECT rank, {LOSS}, {NORM} FROM telemetry WHERE step = {step} ORDER BY rank",
            arrow=lambda found: _rows(
                found, ["rank", "loss/mean", "grad/norm"], ds.field("step") == step
            ),
            target_ms=TARGETED_MS,
        ),
        _window("200 steps, all ranks", edge + 700),
        _window("200 steps in two buckets, all ranks", edge - 100),
        Question(
            name="one rank, whole history",
            sql=f"SELECT step, {LOSS}, {NORM} FROM telemetry WHERE rank = {rank} ORDER BY step",
            arrow=lambda found: _rows(
                found, ["step", "loss/mean", "grad/norm"], ds.field("rank") == rank
            ),
            target_ms=TARGETED_MS,
        ),
        Question(
            name="divergence over everything",
            sql=f"SELECT count(*) FILTER (WHERE spread > {BOUND}), max(spread) FROM "
            f"(SELECT step, max({LOSS}) - min({LOSS}) AS spread FROM telemetry GROUP BY step)",
            arrow=lambda found: _divergence(found, num_steps),
            target_ms=WHOLE_MS,
        ),
    )


def _window(name: str, start: int) -> Question:
    return Question(
        name=name,
        sql=f"SELECT step, max({LOSS}) - min({LOSS}) FROM telemetry "
        f"WHERE step BETWEEN {start} AND {start + 199} GROUP BY step ORDER BY step",
        arrow=lambda found: _spread(found, start, start + 200),
        target_ms=TARGETED_MS,
    )


def _rows(found: ds.Dataset, columns: list[str], condition: Any) -> Rows:
    table = found.to_table(columns=columns, filter=condition).sort_by(columns[0])
    return list(zip(*(table[column].to_pylist() for column in columns), strict=True))


def _spread(found: ds.Dataset, start: int, end: int) -> Rows:
    condition = (ds.field("step") >= start) & (ds.field("step") < end)
    table = found.to_table(columns=["step", "loss/mean"], filter=condition).group_by("step")
    grouped = table.aggregate([("loss/mean", "max"), ("loss/mean", "min")]).sort_by("step")
    spread = grouped["loss/mean_max"].to_numpy() - grouped["loss/mean_min"].to_numpy()
    return list(zip(grouped["step"].to_pylist(), spread.tolist(), strict=True))


def _divergence(found: ds.Dataset, num_steps: int) -> Rows:
    """Bucket by bucket: all at once would hold 1.6 GB."""
    spreads = [
        spread
        for start in range(0, num_steps, BUCKET_STEPS)
        for _, spread in _spread(found, start, start + BUCKET_STEPS)
    ]
    return [(sum(spread > BOUND for spread in spreads), max(spreads))]


def _incident(run: Path) -> Incident:
    run.mkdir()
    incident = create(run, incidents=None, step=7, at=datetime(2026, 11, 29, 3, 12, tzinfo=UTC))
    (incident.folder / "evidence").mkdir()
    return incident


def _path(incident: Incident) -> Path:
    return incident.folder / "evidence" / "telemetry.parquet"


def _timed_write(name: str, path: Path, write: Callable[[Path], None]) -> None:
    began = time.perf_counter()
    write(path)
    took_s = time.perf_counter() - began
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    size_mb = path.stat().st_size / 1e6
    print(
        f"{name}: {took_s:.0f} s with making up the rows, {size_mb:,.0f} MB, peak memory "
        f"so far {peak_mb:,.0f} MB"
    )


def _write_peer(path: Path, num_ranks: int, num_steps: int) -> None:
    """What anybody would write: pyarrow's own defaults with zstd, ordered by rank and step."""
    writer: Any = None
    for first in range(0, num_ranks, BLOCK_RANKS):
        cells = [_cell(bucket, first, num_ranks) for bucket in range(num_steps // BUCKET_STEPS)]
        joined = {
            name: np.concatenate(
                [cell[name].reshape(-1, BUCKET_STEPS) for cell in cells], axis=1
            ).ravel()
            for name in cells[0]
        }
        table = pa.table(joined)
        writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd")
        writer.write_table(table)
    writer.close()


def _buckets(num_ranks: int, num_steps: int) -> Iterator[pa.Table]:
    for bucket in range(num_steps // BUCKET_STEPS):
        cells = [_cell(bucket, first, num_ranks) for first in range(0, num_ranks, BLOCK_RANKS)]
        yield pa.table({name: np.concatenate([cell[name] for cell in cells]) for name in cells[0]})


def _cell(bucket: int, first_rank: int, num_ranks: int) -> dict[str, Any]:
    """A bucket's rows of a block of ranks, rank-major.

    Float32 values that a trainer logged as doubles.
    """
    ranks = np.arange(first_rank, min(first_rank + BLOCK_RANKS, num_ranks))
    draw = np.random.default_rng([7, bucket, first_rank])
    num_rows = ranks.size * BUCKET_STEPS
    rank = np.repeat(ranks, BUCKET_STEPS)
    step = np.tile(np.arange(bucket * BUCKET_STEPS, (bucket + 1) * BUCKET_STEPS), ranks.size)
    noise = draw.standard_normal(num_rows, dtype=np.float32)
    loss = (3 + 5 * np.exp(-step / 20_000)).astype(np.float32) + np.float32(0.05) * noise
    norm = np.exp(np.float32(0.2) * draw.standard_normal(num_rows, dtype=np.float32))
    return {
        "attempt": np.zeros(num_rows, np.int64),
        "rank": rank,
        "step": step,
        "production": np.ones(num_rows, np.bool_),
        "wall_time_s": 1.7e9 + 1.3 * step + draw.random(num_rows),
        "loss/mean": loss.astype(np.float64),
        "grad/norm": norm.astype(np.float64),
    }


if __name__ == "__main__":
    sys.exit(main())
