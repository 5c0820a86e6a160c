"""Runs every benchmark in this folder, one after the other, and prints their tables.

Run: `python tests/bench/run_all.py [NAME …]`, names as in `bench_NAME.py`; nothing else should run
on the machine.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def main() -> int:
    """The largest exit code of all; a benchmark that misses its target ends with 1."""
    wanted = sys.argv[1:]
    paths = [
        path for path in sorted(FOLDER.glob("bench_*.py")) if not wanted or path.stem[6:] in wanted
    ]
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    print(f"{platform.platform()}, {os.cpu_count()} cores, load {load}", flush=True)
    codes = []
    for path in paths:
        print(f"\n## {path.stem[6:]}\n", flush=True)
        codes.append(subprocess.run([sys.executable, str(path)], check=False).returncode)
    return max(codes, default=2)


if __name__ == "__main__":
    sys.exit(main())
