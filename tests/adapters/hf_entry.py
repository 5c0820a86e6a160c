"""Process entry of a test's production run: the job of a code folder, and what is to happen to it.

`python hf_entry.py CODE RUN FATE`: FATE is JSON with any of `crash_step`, and `flip` (step, rank, bit) of one weight.
Replays never pass through here.
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
        number, is_new = self.last_step + 1, not self.is_open
        if is_new and number == fate.get("crash_step"):
            os.kill(os.getpid(), signal.SIGKILL)
        flip = fate.get("flip", {})
        if is_new and number == flip.get("step") and int(os.environ.get("RANK", "0")) == flip["rank"]:
            import torch

            weight = next(one for name, one in self.parts.model.named_parameters() if "mlp" in name and one.ndim == 2)
            weight.detach().view(-1).view(torch.int32)[7] ^= 1 << flip["bit"]
        begin(self)

    Session.begin = fated  # type: ignore[method-assign]


def main() -> None:
    code, run, fate = sys.argv[1:]
    sys.path.insert(0, code)
    bend(json.loads(fate))
    importlib.import_module("job.train").job.train(Path(run))


if __name__ == "__main__":
    main()
