"""The lease on an incident: one command at a time may add rows, and everybody can see which one.

This module never waits for a lease and never takes one from a holder that still lives.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shlex
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from spiketriage import durable
from spiketriage.errors import BusyError, RefusedError

NAME = "lease.json"
HEARTBEAT_S = 5.0
STALE_S = 60.0
# A look at the lease takes milliseconds; a process that was stopped within one must not stop all.
GUARD_WAIT_S, GUARD_POLL_S = 5.0, 0.05
LEASE_BYTES = 1 << 16  # one file and its draft, generously
MAX_PID = 1 << 22  # the largest number that Linux gives a process
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)  # a file system without hard links


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds a lease.

    `place` and `started_ticks` tell a process from a later one with the same number.
    """

    host: str
    place: str
    pid: int
    started_ticks: int
    who: str
    command: str
    since: str
    journal: bool

    def lives(self) -> bool | None:
        """Whether the process still runs; None when that cannot be seen from here."""
        if (self.host, self.place) != (socket.gethostname(), _place()):
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return _started_ticks(self.pid) == self.started_ticks


class Lease:
    """A lease that is held, kept alive by a daemon thread until `release`."""

    def __init__(self, path: Path, holder: Holder, displaced: Holder | None) -> None:
        self.path = path
        self.holder = holder
        self.displaced = displaced
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="spiketriage-lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Do nothing while the lease is ours.

        Raises:
            BusyError: somebody took it over while this process stood still for longer than
            `STALE_S`.
        """
        seen = read(self.path)
        if seen != self.holder:
            raise _busy(self.path, seen)

    def release(self) -> None:
        """Stop the heartbeat and remove the lease, unless it has become somebody else's."""
        self._done.set()
        self._thread.join()
        with _guard(self.path.parent), suppress(OSError):
            if read(self.path) == self.holder:
                self.path.unlink()

    def _beat(self) -> None:
        while not self._done.wait(HEARTBEAT_S):
            with suppress(OSError):  # a missed beat is no reason to stop; the next one may succeed
                if read(self.path) == self.holder:
                    os.utime(self.path)


def acquire(folder: Path, *, who: str, command: str, since: str, journal: bool) -> Lease:
    """Take the lease of the incident in `folder`.

    Raises:
        BusyError: another process holds it.
        RefusedError: the folder cannot be written.
    """
    path = folder / NAME
    holder = Holder(
        host=socket.gethostname(),
        place=_place(),
        pid=os.getpid(),
        started_ticks=_started_ticks(os.getpid()),
        who=who,
        command=command,
        since=since,
        journal=journal,
    )
    try:
        with _guard(folder):
            # drafts of killed commands: under the guard nobody else drafts
            for leftover in folder.glob(f"{NAME}.*"):
                leftover.unlink(missing_ok=True)
            draft = folder / f"{NAME}.{holder.host}-{holder.pid}"
            draft.write_text(json.dumps(asdict(holder)), encoding="utf-8")
            try:
                displaced = _take(path, draft)
            finally:
                draft.unlink(missing_ok=True)
    except OSError as error:
        if error.errno in durable.FULL:
            raise durable.disk_full(path, LEASE_BYTES) from error
        raise RefusedError(
            f"{folder}: the lease cannot be written: {error.strerror or error}"
        ) from error
    return Lease(path, holder, displaced)


def read(path: Path) -> Holder | None:
    """The holder that a lease file names; None when there is no file or it is not a lease."""
    try:
        # neither a link nor a pipe is opened in its place, and a long file is not read to its end
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as stream:
            holder = Holder(**json.loads(stream.read(LEASE_BYTES)))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    for field in fields(Holder):
        if type(getattr(holder, field.name)).__name__ != field.type:
            return None
    if not 0 < holder.pid <= MAX_PID:
        return None
    return holder


def _take(path: Path, draft: Path) -> Holder | None:
    """Put `draft` in the place of the lease; returns the dead holder that it displaced, if any."""
    try:
        os.link(draft, path)  # whole and exclusive in one call: nobody ever reads half a lease
    except FileExistsError:
        seen = read(path)
        lives = seen.lives() if seen else None
        if lives or (lives is None and _age_s(path, draft) < STALE_S):
            raise _busy(path, seen) from None
        os.replace(draft, path)
        return seen
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        with path.open("x", encoding="utf-8") as stream:
            stream.write(draft.read_text(encoding="utf-8"))
    return None


def _age_s(path: Path, draft: Path) -> float:
    """How long ago the lease was touched, by the clock of the file system, which wrote both times.

    A lease from the future was written before a clock was set back, or was copied from elsewhere:
    its age begins now. Whoever holds it touches it again; else it is stale like any other.
    """
    age_s = draft.lstat().st_mtime - path.lstat().st_mtime
    if age_s < -HEARTBEAT_S:
        os.utime(path, follow_symlinks=False)
        return 0.0
    return age_s


def _busy(path: Path, holder: Holder | None) -> BusyError:
    if holder is None:
        return BusyError(
            f"{path}: the lease names no process: it is taken over {STALE_S:g} s after it was last "
            "touched, or at once when you move it away",
            hint=shlex.join(["mv", str(path), f"{path}-broken"]),
        )
    if holder.host == socket.gethostname():
        look = f"ps -p {holder.pid}"
    else:
        look = shlex.join(["ssh", holder.host, "ps", "-p", str(holder.pid)])
    how = ""
    if holder.lives() is None:
        how = f"; it is taken over when nothing has touched {path.name} for {STALE_S:g} s"
    return BusyError(
        f"{path.parent.name}: held by process {holder.pid} of {holder.who} on host {holder.host} "
        f"since {holder.since}: {holder.command}{how}",
        hint=look,
    )


@contextmanager
def _guard(folder: Path) -> Iterator[None]:
    """Serialise looks at the lease that may end in a take-over.

    Without file locks the link alone must do.

    Raises:
        BusyError: somebody has been looking for too long.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        _wait_for_lock(handle, folder / NAME)
        yield
    finally:
        os.close(handle)


def _wait_for_lock(handle: int, path: Path) -> None:
    give_up_at = time.monotonic() + GUARD_WAIT_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= give_up_at:
                raise _busy(path, read(path)) from None
            time.sleep(GUARD_POLL_S)
        except OSError:
            return  # a file system without locks


def _place() -> str:
    """Boot and process-number space.

    Only inside one of both does a process number mean the same process.
    """
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    return ""


def _started_ticks(pid: int) -> int:
    """When a process started, in ticks since boot.

    0 when it is dead (a zombie too) or cannot be seen.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    state, *rest = text.rpartition(")")[2].split()
    if state in "ZX":
        return 0
    return int(rest[18])
