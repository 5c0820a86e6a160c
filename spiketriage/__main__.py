"""The program's start: the command line, from the console script or `python -m spiketriage`.

It takes the current folder off `sys.path` before anything else is imported: that may be the run,
and a `json.py` that lies there must not be ours.
"""

from __future__ import annotations

import os
import signal
import sys


def start() -> None:
    """Run the command line on what is installed, never on what lies in the current folder."""
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    here = os.getcwd()
    if here != home:
        sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or here) != here]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # until somebody is there who can report it
    from spiketriage.cli.main import run  # noqa: PLC0415 - not before the path is clean

    run()


if __name__ == "__main__":
    start()
