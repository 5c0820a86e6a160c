"""Hash and scan on other machines.

A real cluster, one of whose workers dies in the middle, and clusters that refuse.

The cluster is of this machine, so what it cannot show is a file system that is not shared:
`/proc/self` stands for one.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from command_line import call
from dask_cluster import Cluster, Told, tell_or_die
from run_folder import flip_byte, write_run

from spiketriage.errors import RefusedError, SpiketriageError, UsageError
from spiketriage.incident import store
from spiketriage.readers.checkpoints.dcp import layout
from spiketriage.readers.scan import plan as planning
from spiketriage.readers.scan.run import digest_files, measure
from spiketriage.readers.scan.spread import RemoteExecutor, not_measured, spread, unmeasured_path
from spiketriage.runbook import freeze
from spiketriage.runbook import hash as hash_step
from spiketriage.tools import cluster, inspect

DCP = Path(__file__).parents[1] / "fixtures" / "dcp" / "plain" / "step_3"
PIECE = 1 << 16
NUM_PIECES = 200


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPIKETRIAGE_QUIET", "1")


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), 2) as running:
        yield running


class Watched(RemoteExecutor):
    """Hands everything on, counts what is under way, and does something before job number `at`."""

    def __init__(
        self, inner: Executor, at: int = 0, then: Callable[[], object] = lambda: None
    ) -> None:
        self.inner, self.at, self.then = inner, at, then
        self.in_flight = inner.in_flight if isinstance(inner, RemoteExecutor) else 5
        self.futures: list[Future[Any]] = []
        self.most_under_way = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        if len(self.futures) == self.at:
            self.then()
        self.futures.append(self.inner.submit(fn, *args, **kwargs))
        self.most_under_way = max(self.most_under_way, sum(not one.done() for one in self.futures))
        return self.futures[-1]

    def trouble(self) -> str:
        return self.inner.trouble() if isinstance(self.inner, RemoteExecutor) else ""


@pytest.fixture
def big(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of many small pieces, no two of them alike."""
    monkeypatch.setattr(planning, "PIECE_BYTES", PIECE)
    path = tmp_path / "big.bin"
    path.write_bytes(
        b"".join(number.to_bytes(8, "little") * (PIECE // 8) for number in range(NUM_PIECES))
        + b"end"
    )
    return path


def test_a_worker_killed_in_the_middle_changes_no_digest(two_workers: Cluster, big: Path) -> None:
    two_workers.replace_dead_workers()
    with cluster.executor(two_workers.address, (big.parent,)) as workers:
        assert isinstance(workers, RemoteExecutor)
        assert workers.in_flight == 8
        killing: list[threading.Thread] = []
        watched = Watched(
            workers, NUM_PIECES // 2, lambda: killing.append(two_workers.kill_one_at_work())
        )
        seen = digest_files([big], executor=watched)
        killing[0].join()
    assert seen == digest_files([big])
    assert len(seen[0].pieces) == NUM_PIECES + 1
    assert len(watched.futures) == NUM_PIECES + 1
    assert watched.most_under_way <= 8
    assert len(two_workers.pids) == 1


def test_a_checkpoint_is_measured_alike_here_and_there(
    two_workers: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "PIECE_BYTES", 4096)
    two_workers.replace_dead_workers()
    facts = layout.read(DCP)
    with cluster.executor(two_workers.address, (DCP,)) as workers:
        there = measure(facts, is_full=True, executor=workers)
    assert there == measure(facts, is_full=True)
    assert there.stats


def test_the_commands_find_the_same_on_a_cluster(two_workers: Cluster, tmp_path: Path) -> None:
    two_workers.replace_dead_workers()
    here, there = tmp_path / "here" / "run", tmp_path / "there" / "run"
    write_run(here, rotten_document="doc-5")
    flip_byte(here / "checkpoints" / "step-000080" / "tensors" / "__0_0.distcp", -3)
    shutil.copytree(here, there, copy_function=shutil.copy2)
    for run in (here, there):
        freeze.run(run, incidents=None, incident=None, argv=["spiketriage", "freeze", str(run)])
    expected = hash_step.run(
        here, incidents=None, incident=None, argv=["spiketriage", "hash", str(here)]
    )
    seen = call("hash", str(there), "--json", "--cluster", two_workers.address, cwd=tmp_path)
    assert (expected.exit_code, seen.returncode) == (4, 4), seen.stderr
    assert json.loads(seen.stdout)["data"] == json.loads(json.dumps(expected.data))
    assert f"cluster: {two_workers.address}: 2 workers, 2 threads" in seen.stderr
    assert "doc-5" in seen.stdout
    relative = DCP.relative_to(DCP.parents[3])
    looked = call(
        "inspect", "--deep", "--cluster", two_workers.address, str(relative), cwd=DCP.parents[3]
    )
    assert looked.returncode == 0, looked.stderr
    assert "is finite" in looked.stdout


def test_a_job_that_kills_its_workers_is_a_sentence_and_the_others_are_done(
    two_workers: Cluster,
) -> None:
    two_workers.replace_dead_workers()

    def words() -> Iterator[str]:
        yield "first"
        yield "die"
        two_workers.wait_for_deaths()
        two_workers.replace_dead_workers()
        yield "last"

    with cluster.executor(two_workers.address, ()) as workers:
        assert workers is not None
        found = list(
            spread(
                tell_or_die, words(), workers, lost=lambda word, why: Told(text=word, problem=why)
            )
        )
    assert [one.text.split()[0] for one in found] == ["first", "die", "last"]
    assert [one.problem for one in found] == ["", "each of 2 workers died that tried", ""]
    assert int(found[2].text.split()[1]) in two_workers.pids


def test_when_the_scheduler_goes_what_was_measured_stands(
    tmp_path: Path, big: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "ANSWER_S", 1)
    small = tmp_path / "small.bin"
    small.write_bytes(b"x" * 1000)
    with (
        Cluster(tmp_path, 1) as running,
        cluster.executor(running.address, (tmp_path,)) as workers,
    ):
        assert workers is not None
        watched = Watched(workers, NUM_PIECES // 2, running.kill_scheduler)
        first, second = digest_files([small, big], executor=watched)
    assert first == digest_files([small])[0]
    assert second.digest == ""
    assert len(watched.futures) < NUM_PIECES


def sentence(address: str, *places: Path) -> SpiketriageError:
    with pytest.raises(SpiketriageError) as caught, cluster.executor(address, places):
        pass
    return caught.value


def test_a_cluster_that_could_not_measure_what_this_machine_would_is_refused(
    two_workers: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_workers.replace_dead_workers()
    host = socket.gethostname()
    mine = Path(f"/proc/self/task/{os.getpid()}")
    unseen = sentence(two_workers.address, mine)
    assert isinstance(unseen, RefusedError)
    assert f"worker on {host} does not see {mine}" in unseen.message
    other = sentence(two_workers.address, mine.parent)
    assert isinstance(other, RefusedError)
    assert f"worker on {host} sees another {mine.parent}" in other.message
    monkeypatch.setattr(cluster, "__version__", "0.0.9")
    version = sentence(two_workers.address)
    assert isinstance(version, RefusedError)
    assert version.message == f"the worker on {host} has spiketriage 0.1.0, this machine has 0.0.9"


def test_an_address_where_nobody_answers_is_refused_and_nonsense_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster, "ANSWER_S", 1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        for _ in range(2):  # nobody listens; then somebody does who never says a word
            refused = sentence(address)
            assert isinstance(refused, RefusedError)
            assert refused.message == f"no Dask scheduler answers at {address} within 1 s"
            silent.listen()
    assert isinstance(sentence("nonsense://x"), UsageError)
    monkeypatch.setitem(sys.modules, "distributed", None)
    missing = sentence(address)
    assert isinstance(missing, UsageError)
    assert missing.hint == "pip install 'spiketriage[dask]'"


def test_a_hash_that_is_not_measured_whole_is_partial_and_leaves_what_is_on_record(
    tmp_path: Path,
) -> None:
    run = write_run(tmp_path / "run", spike_at=110)
    freeze.run(run, incidents=None, incident=None, argv=["spiketriage", "freeze", str(run)])
    before = store.find(run, incidents=None, wanted=None).dossier()
    stopped = ThreadPoolExecutor(1)
    stopped.shutdown()
    words = ["spiketriage", "hash", str(run)]
    result = hash_step.run(run, incidents=None, incident=None, argv=words, executor=stopped)
    assert (result.exit_code, result.verdict) == (6, "partial")
    assert result.data["differing"] == []
    assert (
        len(result.data["not_measured"]) == 3 * 4 + 2
    )  # generations of two ranks and a file of tensors, and shards
    assert (
        result.data["findings"]["generation-digests"]
        == result.data["findings"]["shard-digests"]
        == "not testable"
    )
    assert result.next_commands == (f"spiketriage hash {run}",)
    after = store.find(run, incidents=None, wanted=None).dossier()
    assert (after.anchors, after.artifacts, dict(after.facts)) == (
        before.anchors,
        before.artifacts,
        dict(before.facts),
    )
    looked = inspect.run(DCP, executor=stopped)
    assert (looked.exit_code, looked.verdict) == (6, "partial")
    assert not any("is finite" in line or "hold" in line for line in looked.lines)


def test_what_a_worker_cannot_read_is_read_here() -> None:
    with ThreadPoolExecutor(2) as threads:
        blind = {threading.get_ident()}

        def look(word: str) -> Told:
            return Told(
                text=word, problem="" if threading.get_ident() in blind else "no such mount"
            )

        found = list(
            spread(look, ["a", "b"], threads, lost=lambda word, why: Told(text=word, problem=why))
        )
    assert [(one.text, one.problem) for one in found] == [("a", ""), ("b", "")]


def test_an_end_before_the_last_result_cancels_what_has_not_begun() -> None:
    door = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        watched = Watched(threads)

        def knock(number: int) -> Told:
            if number:
                assert door.wait(60)
            return Told(text=str(number))

        results = spread(
            knock, range(100), watched, lost=lambda number, why: Told(text=str(number), problem=why)
        )
        assert next(results) == Told(text="0")
        results.close()
        assert sum(one.cancelled() for one in watched.futures) >= 3
        door.set()
    assert len(watched.futures) <= 6


def test_the_path_of_what_is_not_measured_is_told_whatever_the_reason() -> None:
    for path, reason in (
        ("/a/b", "KilledWorker"),
        ("/a (1): b", "see (tcp://h:1): gone"),
        ("x", ""),
    ):
        assert unmeasured_path(not_measured(path, reason)) == path
    assert unmeasured_path("/a/b: cannot be read (why): no") == ""
