"""One rehearsed run as a test uses it.

Its folder, what was planted, and what its processes said about themselves.

The run is made by the real command in a process of its own; while it goes on, `/proc` is watched.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from command_line import PROGRAM, ROOT, environment

from spiketriage.practice.rehearsal import staging
from spiketriage.practice.rehearsal.catalogue import load_fault

WATCH_EVERY_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Argument list and environment of one process, as anybody on the machine can read them."""

    argv: bytes
    environ: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """A run and everything that a test may hold against it."""

    folder: Path
    fault: str
    stage: staging.Staging
    told: frozenset[Told]


def rehearse(fault: str, seed: int, out: Path) -> Rehearsed:
    """Make the run and watch every process that the command starts."""
    command = [
        sys.executable,
        "-c",
        PROGRAM,
        "rehearse",
        "--fault",
        fault,
        "--seed",
        str(seed),
        "--out",
        str(out),
    ]
    told: set[Told] = set()
    log = out.with_name("rehearse.log")
    with (
        log.open("w") as stream,
        subprocess.Popen(command, env=clean_environment(), stdout=stream, stderr=stream) as child,
    ):
        while child.poll() is None:
            told |= {one for pid in descendants(child.pid) if (one := _told(pid)) is not None}
            time.sleep(WATCH_EVERY_S)
    assert child.returncode == 0, log.read_text()
    own = b"".join(word.encode() + b"\0" for word in command)
    started = frozenset(
        one for one in told if one.argv != own
    )  # a child between fork and exec still shows its parent's
    return Rehearsed(folder=out, fault=fault, stage=planted(fault, seed), told=started)


def planted(fault: str, seed: int) -> staging.Staging:
    """The stage of a rehearsal, worked out again from fault and seed.

    Nothing of it lies in the run.
    """
    stage = staging.prepare(seed)
    load_fault(fault).plant(stage)
    return stage


def clean_environment() -> dict[str, str]:
    """What a command is started with.

    Pytest's own variable would tell the test's name to every process.
    """
    return {key: value for key, value in environment().items() if not key.startswith("PYTEST_")}


def start(*words: str, log: Path) -> subprocess.Popen[bytes]:
    """Start `spiketriage` and do not wait for it; what it says goes to `log`."""
    with log.open("ab") as stream:
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *words],
            env=clean_environment(),
            cwd=ROOT,
            stdout=stream,
            stderr=stream,
        )


def descendants(pid: int) -> set[int]:
    """Every living process below `pid`."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and (parent := _parent(int(entry))) is not None:
            children.setdefault(parent, []).append(int(entry))
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found.update(below)
        waiting += below
    return found


def command_of(pid: int) -> bytes:
    """Argument list of a living process; nothing when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def gone(pids: set[int], *, within_s: float) -> bool:
    """Whether all of `pids` end by themselves within a time; polls."""
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        if not any(_parent(pid) is not None for pid in pids):
            return True
        time.sleep(WATCH_EVERY_S)
    for pid in pids:
        if _parent(pid) is not None:
            os.kill(pid, signal.SIGKILL)
    return False


def _parent(pid: int) -> int | None:
    """Parent of a process; None when it is dead, a zombie, or not ours to see."""
    try:
        state, parent, *_ = (
            Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        )
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else int(parent)


def _told(pid: int) -> Told | None:
    try:
        return Told(argv=command_of(pid), environ=Path(f"/proc/{pid}/environ").read_bytes())
    except OSError:
        return None
