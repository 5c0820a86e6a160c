"""`python -m spiketriage`.

The command line, for places where the console script is not on the path.
"""

from __future__ import annotations

from spiketriage.cli.main import run

if __name__ == "__main__":
    run()
