"""Process entry of a test's production run: the job of a code folder, and what is to happen to it.

`python hf_entry.py CODE RUN FATE`: FATE is JSON; at its `crash_step` the process is killed.
Replays never pass through here, as in `spiketriage.practice.rehearsal.entry`.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any


def bend(fate: dict[str, Any]) -> None:
    """Wrap the session's `begin`, so that the fate comes about just before its step."""
    from spiketriage.train.adapters.session import Session

    begin = Session.begin

    def fated(self: Any) -> None:
        if not self.is_open and self.last_step + 1 == fate.get("crash_step"):
            os.kill(os.getpid(), signal.SIGKILL)
        begin(self)

    Session.begin = fated  # type: ignore[method-assign]


def main() -> None:
    code, run, fate = sys.argv[1:]
    sys.path.insert(0, code)
    bend(json.loads(fate))
    importlib.import_module("job.train").job.train(Path(run))


if __name__ == "__main__":
    main()
