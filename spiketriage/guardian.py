"""Stands between the desk and what it starts, and ends all of that when the desk is gone.

It is run by its path in an interpreter of its own (`python -I -S guardian.py LEASH COMMAND…`), so
it never imports anything but the standard library, and nothing that a run could have planted.

LEASH is the number of a pipe from the desk, which closes however the desk ends. Descendants that
left the process group or the session are found all the same: this process adopts every orphan
below it (Linux, `PR_SET_CHILD_SUBREAPER`), and kills, which code that holds the interpreter's lock
or sits in a C call cannot refuse. Elsewhere than on Linux only the process group is ended.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
POLL_S = 0.02


def main(leash: int, command: list[str]) -> int:
    """Run `command` to its end, and return its exit code as a shell would."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _stop)
    group = 0
    try:
        child = subprocess.Popen(command, start_new_session=True)
        group = child.pid
        threading.Thread(target=_end_with_the_desk, args=(leash,), daemon=True).start()
        status = child.wait()
    finally:
        end_all(group)
    if status < 0:
        return 128 - status
    return status


def end_all(group: int) -> None:
    """Kill every process below this one, at once; no signal stops that.

    A worker that were asked first could finish a trial that somebody has begun anew.
    """
    _ignore_signals()
    _kill(group)
    while below(os.getpid()):
        _kill(group)
        _reap()
        time.sleep(POLL_S)


def below(pid: int) -> list[int]:
    """The descendants of a process, as /proc lists them; none where there is no such thing."""
    parents: dict[int, int] = {}
    try:
        entries = [entry for entry in os.listdir("/proc") if entry.isdecimal()]
    except OSError:
        return []
    for entry in entries:
        with suppress(OSError, IndexError):  # it ended meanwhile
            # The name in brackets may hold anything, spaces and brackets too.
            fields = Path(f"/proc/{entry}/stat").read_bytes().rpartition(b")")[2].split()
            parents[int(entry)] = int(fields[1])
    found: list[int] = []
    fresh = [pid]
    while fresh:
        fresh = [child for child, parent in parents.items() if parent in fresh]
        found += fresh
    return found


def _kill(group: int) -> None:
    if group:
        with suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    for pid in below(os.getpid()):
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _end_with_the_desk(leash: int) -> None:
    while os.read(leash, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _ignore_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    _ignore_signals()  # one end is enough
    raise SystemExit(128 + number)


def _prctl(option: int, value: int) -> None:
    with suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
