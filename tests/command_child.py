"""A process that runs real command lines in forked children and kills them.

It pays for the imports once.

Orders come as lines of JSON on stdin, answers go as lines of JSON to stdout: `{"words": [...],
"log": path}` runs a command to its end, with `"after_s"` it is killed after a while, with `"event"`
at its k-th file operation.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from typing import Any

from spiketriage.cli.main import run

STEPS = (
    "runbook.freeze",
    "runbook.hash",
    "runbook.check",
    "runbook.bisect",
    "report.write",
    "incident.store",
)
OPERATIONS = (
    "open",
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.link",
    "os.utime",
    "subprocess.Popen",
)


class Events:
    """Counts the file operations that Python knows of, and dies at one of them."""

    def __init__(self, last: int | None) -> None:
        self.seen, self.last = 0, last
        sys.addaudithook(self._hook)

    def _hook(self, name: str, arguments: object) -> None:
        if name in OPERATIONS or name.startswith("shutil."):
            self.seen += 1
            if self.seen == self.last:
                os.kill(os.getpid(), signal.SIGKILL)


def work(order: dict[str, Any], writer: int) -> int:
    """Run the command line in this forked process; returns its exit code."""
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = ["spiketriage", *order["words"]]
    events = Events(order.get("event"))
    try:
        run()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    os.write(writer, str(events.seen).encode())
    return code


def obey(order: dict[str, Any]) -> dict[str, Any]:
    """Fork, wait or kill, and say how it ended."""
    reader, writer = os.pipe()
    started_s = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        code = 70
        try:
            code = work(order, writer)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    os.close(writer)
    if "after_s" in order:
        time.sleep(order["after_s"])
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    said = os.read(reader, 64)
    os.close(reader)
    return {
        "killed": os.WIFSIGNALED(status),
        "code": os.waitstatus_to_exitcode(status),
        "num_events": int(said or 0),
        "wall_s": time.monotonic() - started_s,
    }


if __name__ == "__main__":
    for name in STEPS:
        importlib.import_module(f"spiketriage.{name}")
    while line := sys.stdin.readline():
        print(json.dumps(obey(json.loads(line))), flush=True)
