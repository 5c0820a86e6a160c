"""A process that works on an incident and is killed at it.

It never uses DuckDB before it has forked.

Orders come as lines of JSON on stdin, answers go as lines of JSON to stdout. Each order forks one
worker, so that the imports are paid once: `{"do": "loop", "incident": ..., "after_s": ...}` kills
it after a while, `{"do": "event", ..., "event": k}` kills it at its k-th file operation, `create`
does so while it makes an incident, `hold` leaves it inside a session.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spiketriage.incident.store import Incident, create
from spiketriage.nouns.incident import Finding, StepPoint

ARGV = ("spiketriage", "check")
AT = datetime(2026, 11, 29, 3, 12, tzinfo=UTC)


def one_session(incident: Incident, count: int) -> None:
    """Two commits whose rows must appear together.

    A fact, a finding and 50 steps that all say `count`.
    """
    with incident.session(ARGV) as session:
        for part in (2 * count, 2 * count + 1):
            session.fact("num_alarms", str(part))
            session.findings([Finding(name="count", outcome="agrees", summary="", seen=str(part))])
            session.steps(
                StepPoint(
                    attempt=0,
                    step=i,
                    loss=float(part),
                    grad_norm=1.0,
                    update_norm=1.0,
                    lr=1.0,
                    alarm="",
                )
                for i in range(50)
            )
            session.commit()
            os.write(1, f"{part}\n".encode())


def die_at(event: int) -> None:
    """Kill this process at its `event`-th file operation that Python knows of."""
    seen = 0
    names = {"open", "shutil.copyfile", "shutil.rmtree"}

    def hook(name: str, _: object) -> None:
        nonlocal seen
        if name in names or name.startswith(("os.mk", "os.re", "os.li", "os.rm", "os.un", "os.ut")):
            seen += 1
            if seen == event:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def work(order: dict[str, Any]) -> None:
    """What the forked worker does; it ends by itself only when its k-th event never comes."""
    incident = Incident(folder=Path(order["incident"]))
    count = int(order.get("count", 0))
    if order["do"] == "create":
        die_at(order["event"])
        create(incident.folder, incidents=None, step=1, at=AT)
    elif order["do"] == "event":
        die_at(order["event"])
        one_session(incident, count)
    elif order["do"] == "hold":
        with incident.session(ARGV):
            os.write(1, b"held\n")
            time.sleep(600)
    else:
        while True:
            one_session(incident, count)
            count += 1


def obey(order: dict[str, Any]) -> dict[str, Any]:
    """Fork a worker, wait for what the order asks, kill it, and say what it had said."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(writer, 1)
        try:
            work(order)
        finally:
            os._exit(0)
    os.close(writer)
    if order["do"] == "loop":
        select.select([reader], [], [], 30)  # it has begun: the first commit is through
        time.sleep(order["after_s"])
        os.kill(pid, signal.SIGKILL)
    if order["do"] == "hold":
        select.select([reader], [], [], 30)
        print(json.dumps({"pid": pid}), flush=True)
        sys.stdin.readline()
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    said = b""
    while chunk := os.read(reader, 65536):
        said += chunk
    os.close(reader)
    return {"pid": pid, "killed": os.WIFSIGNALED(status), "said": said.decode().split()}


if __name__ == "__main__":
    while line := sys.stdin.readline():
        print(json.dumps(obey(json.loads(line))), flush=True)
