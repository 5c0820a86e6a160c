"""A Dask cluster as the executor of `hash` and `inspect` with `--cluster`.

Its workers read the files where they are.

This module never starts or stops a scheduler or a worker, and uses none that could not measure what
this machine would.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pkgutil
import socket
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from spiketriage import __version__
from spiketriage.errors import RefusedError, UsageError
from spiketriage.evidence.progress import say
from spiketriage.readers.scan.spread import RemoteExecutor

ANSWER_S = 10  # for the scheduler to answer
WORKERS_S = 30  # for a worker to be there, at the start and after all are lost
# of a piece that raises; how many deaths it may survive is the scheduler's `allowed-failures`
NUM_RETRIES = 2
IN_FLIGHT = (
    4  # pieces handed out for each thread of the workers, so that none waits for this machine
)
T = TypeVar("T")


class ClusterExecutor(RemoteExecutor):
    """Runs jobs on the workers of a cluster; one that dies has its jobs done by the others."""

    def __init__(self, client: Any, address: str) -> None:
        self._client = client
        self._address = address
        self.in_flight = IN_FLIGHT * sum(client.nthreads().values())

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Hand out one job.

        Raises:
            RuntimeError: the scheduler is gone.
        """
        if self._client.status != "running":
            raise RuntimeError(self.trouble())
        job = self._client.submit(fn, *args, pure=False, retries=NUM_RETRIES, **kwargs)

        async def outcome() -> T:
            answer: T = await job
            return answer

        # Not Dask's own executor: its futures never end when the connection does.
        return asyncio.run_coroutine_threadsafe(outcome(), self._client.loop.asyncio_loop)

    def trouble(self) -> str:
        """Say that the scheduler is gone, or that no worker has come back."""
        if self._client.status in ("running", "connecting"):  # it reconnects by itself for a while
            try:
                self._client.wait_for_workers(1, timeout=WORKERS_S)
            except TimeoutError:
                return f"the cluster at {self._address} has had no worker for {WORKERS_S} s"
            except (OSError, RuntimeError):
                pass  # it went just now
            else:
                return ""
        return f"the scheduler at {self._address} is gone"

    def why(self, error: BaseException) -> str:
        """A piece that kills its workers is the one error that needs words of ours."""
        from distributed import KilledWorker  # noqa: PLC0415 - an extra that may be absent

        if isinstance(error, KilledWorker) and error.allowed_failures is not None:
            return f"each of {error.allowed_failures + 1} workers died that tried"
        if self._client.status == "running":
            return super().why(error)
        return self.trouble()


@contextmanager
def executor(address: str | None, places: Sequence[Path]) -> Iterator[Executor | None]:
    """The cluster at `address`, whose workers see `places`.

    Without an address nothing, which means this machine.

    Raises:
        UsageError: the extra is not installed, or the address is none.
        RefusedError: nobody answers, or the workers have another spiketriage or do not see the same
        files.
    """
    if address is None:
        yield None
        return
    client = _connect(address)
    with _quiet():
        try:
            hosts = _hosts(client, address)
            _require_same_version(client, hosts)
            for place in places:
                _require_sight(client, hosts, place)
            pool = ClusterExecutor(client, address)
            say(f"cluster: {address}: {len(hosts)} workers, {pool.in_flight // IN_FLIGHT} threads")
            yield pool
        finally:
            client.close(timeout=ANSWER_S)


def _connect(address: str) -> Any:
    try:
        from distributed import Client  # noqa: PLC0415 - an extra that may be absent
    except ImportError as error:
        message = f"--cluster needs Dask, which is not installed ({error})"
        raise UsageError(message, hint="pip install 'spiketriage[dask]'") from error
    with _quiet(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            asyncio.run(_shake_hands(address))
            untyped: Any = Client
            client = untyped(address, timeout=ANSWER_S, set_as_default=False)
        except (ValueError, TypeError) as error:
            message = f"--cluster: {address!r} is no address of a Dask scheduler: {error}"
            raise UsageError(message, hint="--cluster tcp://HOST:8786") from error
        except OSError as error:
            message = f"no Dask scheduler answers at {address} within {ANSWER_S} s"
            raise RefusedError(message, hint="dask scheduler") from error
    for warning in caught:
        if warning.category.__name__ == "VersionMismatchWarning":
            say(f"cluster: {warning.message}")
    return client


async def _shake_hands(address: str) -> None:
    """Connect once and let go.

    Dask's own client waits for ever for a server that takes a call and says nothing.
    """
    import distributed.comm  # noqa: PLC0415 - an extra that may be absent

    untyped: Any = distributed
    arguments = untyped.Security().get_connection_args("client")
    handshake = untyped.comm.connect(address, timeout=ANSWER_S, **arguments)
    (await asyncio.wait_for(handshake, ANSWER_S)).abort()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Dask's own tracebacks off the terminal: what they mean is said by us."""
    names = []
    for name in logging.root.manager.loggerDict:
        if name.startswith(("distributed", "tornado", "asyncio")):
            names.append(name)
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _hosts(client: Any, address: str) -> Mapping[str, str]:
    """The name of each worker's machine, by the worker's address."""
    try:
        client.wait_for_workers(1, timeout=WORKERS_S)
    except TimeoutError as error:
        message = f"the cluster at {address} has no worker after {WORKERS_S} s"
        raise RefusedError(message, hint=f"dask worker {address}") from error
    return {worker: str(name) for worker, name in _ask(client, socket.gethostname).items()}


def _ask(client: Any, question: Callable[..., Any], *words: str) -> Mapping[str, Any]:
    """The answer of each worker, or its error.

    A question of the standard library needs nothing of ours there.
    """
    answers: Mapping[str, Any] = client.run(question, *words, on_error="return")
    return answers


def _require_same_version(client: Any, hosts: Mapping[str, str]) -> None:
    for worker, seen in _ask(client, pkgutil.resolve_name, "spiketriage:__version__").items():
        if seen != __version__:
            if isinstance(seen, str):
                what = f"has spiketriage {seen}"
            else:
                what = f"cannot import spiketriage ({seen})"
            message = (
                f"the worker on {hosts.get(worker, worker)} {what}, this machine has {__version__}"
            )
            raise RefusedError(message, hint=f"pip install 'spiketriage[dask]=={__version__}'")


def _require_sight(client: Any, hosts: Mapping[str, str], place: Path) -> None:
    try:
        here = place.stat()
        if place.is_dir():
            names = set(os.listdir(place))
        else:
            names = set()
    except OSError:
        return  # whoever reads it will say so
    for worker, there in _ask(client, os.stat, str(place)).items():
        host = hosts.get(worker, worker)
        hint = f"ssh {host} ls -l {place}"
        if not isinstance(there, os.stat_result):
            message = (
                f"the worker on {host} does not see {place} ({there}): the files must be "
                "shared under one path"
            )
            raise RefusedError(message, hint=hint)
        # Not every shared file system gives a file one number everywhere, so another one alone
        # convicts nobody.
        if (here.st_ino, here.st_mtime_ns) == (there.st_ino, there.st_mtime_ns):
            continue
        if names:
            seen = client.run(os.listdir, str(place), workers=[worker], on_error="return")[worker]
        else:
            seen = ()
        if (
            here.st_size != there.st_size
            if not names
            else names - set(seen if isinstance(seen, list) else ())
        ):
            message = (
                f"the worker on {host} sees another {place} than this machine: the files must "
                "be shared"
            )
            raise RefusedError(message, hint=hint)
