"""Groups of processes on a leash: they end with us, however we end, and whatever they do.

It never looks at what they compute; their words go to a log.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from spiketriage import children


def torchrun(num_processes: int, *program: str) -> list[str]:
    """The command line that starts `program` on every rank of this machine."""
    return [
        *children.python("-m", "torch.distributed.run", "--standalone"),
        f"--nproc-per-node={num_processes}",
        *program,
    ]


def run_leashed(argv: Sequence[str], log: Path, *, limit_s: float) -> int:
    """Run a command to its end and return its exit code; what it says goes to `log`.

    The command works in a folder of its own, which is empty and goes with it.
    """
    environment = children.environment(OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
    with (
        log.open("w", encoding="utf-8") as stream,
        tempfile.TemporaryDirectory(prefix="spiketriage-", ignore_cleanup_errors=True) as folder,
    ):
        child = children.Guarded(
            argv, stdout=stream, stderr=subprocess.STDOUT, env=environment, cwd=folder
        )
        try:
            return child.wait(timeout=limit_s)
        finally:
            child.end()
