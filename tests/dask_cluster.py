"""A real Dask cluster of this machine.

One scheduler and its workers, each a process of its own on the loopback device.

It ends only the processes that it started, and they end by themselves when nobody asks anything of
them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from command_line import ROOT, environment

WAIT_S = 60
ALLOWED_FAILURES = 1  # deaths of a worker that a job survives


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a job of a test returns."""

    text: str
    problem: str = ""


def tell_or_die(word: str) -> Told:
    """The word and this process's number, unless the word is to die."""
    if word == "die":
        os._exit(1)
    return Told(text=f"{word} {os.getpid()}")


def wait_for(path: str) -> None:
    """Keep a worker busy until the file is there."""
    while not os.path.exists(path):
        time.sleep(0.01)


class Cluster:
    """A context manager; `address` is where the scheduler answers."""

    def __init__(self, folder: Path, num_workers: int) -> None:
        self._folder = folder
        words = ("--port", "0", "--scheduler-file", "scheduler.json", "--idle-timeout", "120s")
        self._scheduler = self._start("scheduler", *words)
        self.address: str = self._said()["address"]
        self._workers = [self._worker() for _ in range(num_workers)]

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for process in (*self._workers, self._scheduler):
            _end(process)

    @property
    def pids(self) -> set[int]:
        """The workers that are alive."""
        return {one.pid for one in self._workers if one.poll() is None}

    def kill_one_at_work(self) -> threading.Thread:
        """End, in a thread, a worker that has jobs of somebody else.

        Both are held up until one has got some.
        """
        client, door = self._client(), self._folder / "door"
        pids = client.run(os.getpid)
        held = [
            client.submit(
                wait_for, str(door), workers=[worker], allow_other_workers=True, pure=False
            )
            for worker in pids
        ]

        def kill() -> None:
            with client:
                while not (
                    busy := [
                        worker for worker, jobs in client.processing().items() if len(jobs) > 1
                    ]
                ):
                    time.sleep(0.01)
                _end(next(one for one in self._workers if one.pid == pids[busy[0]]))
                door.touch()
                client.gather(held)

        thread = threading.Thread(target=kill)
        thread.start()
        return thread

    def kill_scheduler(self) -> None:
        """End the scheduler."""
        _end(self._scheduler)

    def replace_dead_workers(self) -> None:
        """Start a worker for each that has ended, and wait until the scheduler knows all of them and no other."""
        self._workers = [one if one.poll() is None else self._worker() for one in self._workers]
        with self._client() as client:
            while set(client.run(os.getpid, on_error="return").values()) != self.pids:
                time.sleep(0.02)

    def wait_for_deaths(self) -> None:
        """Wait until every worker has ended."""
        for process in self._workers:
            process.wait(timeout=WAIT_S)

    def _client(self) -> Any:
        from distributed import Client

        return Client(self.address, set_as_default=False)

    def _worker(self) -> subprocess.Popen[bytes]:
        return self._start(
            "worker", self.address, "--no-nanny", "--nthreads", "1", "--death-timeout", "60"
        )

    def _start(self, program: str, *words: str) -> subprocess.Popen[bytes]:
        where = ("--no-dashboard", "--host", "127.0.0.1")
        with (self._folder / f"{program}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.dask_{program}", *where, *words],
                cwd=self._folder,
                env={
                    **environment(),
                    "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
                    "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": str(ALLOWED_FAILURES),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _said(self) -> Any:
        path, deadline_s = self._folder / "scheduler.json", time.monotonic() + WAIT_S
        while time.monotonic() < deadline_s:
            try:
                return json.loads(path.read_text())
            except (OSError, ValueError):
                assert self._scheduler.poll() is None, (self._folder / "scheduler.log").read_text()
                time.sleep(0.02)
        raise AssertionError(f"no scheduler: {(self._folder / 'scheduler.log').read_text()}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(timeout=WAIT_S)
