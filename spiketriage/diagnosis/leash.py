"""Child processes on a leash: they end with us, however we end.

It never looks at what they compute; their words go to a log.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from spiketriage.wire.trial import LEASH


def torchrun(num_processes: int, *program: str) -> list[str]:
    """The command line that starts `program` on every rank of this machine."""
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={num_processes}",
    ]
    return [*launcher, *program]


def run_leashed(argv: Sequence[str], log: Path, *, limit_s: float) -> int:
    """Run a command to its end and return its exit code; what it says goes to `log`.

    The pipe on its standard input is the leash: it closes when this process is gone.
    """
    environment = {**os.environ, LEASH: "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    with (
        log.open("w", encoding="utf-8") as stream,
        subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        ) as child,
    ):
        try:
            return child.wait(timeout=limit_s)
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGTERM)
