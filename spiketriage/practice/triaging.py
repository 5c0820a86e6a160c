"""Run `spiketriage triage` on a rehearsed run as a user does, and read its JSON.

It never hands the desk anything but the run folder.
"""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spiketriage import children
from spiketriage.errors import TrialError


@dataclass(frozen=True, slots=True, kw_only=True)
class Triaged:
    """The envelope that triage printed, its exit code and how long it took."""

    envelope: dict[str, Any]
    exit_code: int
    wall_s: float

    @property
    def verdict(self) -> str:
        """Kind of the verdict."""
        return str(self.envelope["verdict"])

    @property
    def cause(self) -> str | None:
        """The cause named, if any."""
        named = self.envelope["data"].get("cause")
        if named is None:
            return None
        return str(named)


def triage(run: Path, *, is_ours: bool) -> Triaged:
    """Triage `run`; `is_ours` says that the run was made here just now, so its code is trusted.

    Raises:
        TrialError: the command did not print an envelope; its own words are in the message.
    """
    command = children.python("-m", "spiketriage", "triage", str(run), "--json")
    if is_ours:
        command.append("--trust")
    started_s = time.perf_counter()
    child = children.Guarded(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        said, talk = child.communicate()
    finally:
        exit_code = child.end()
    wall_s = time.perf_counter() - started_s
    try:
        envelope = json.loads(said)
    except ValueError as error:
        last = talk.decode(errors="replace")[-800:]
        raise TrialError(f"triage of {run} ended with exit code {exit_code}: {last}") from error
    if "error" in envelope:
        raise TrialError(f"triage of {run} failed: {envelope['error']['message']}")
    return Triaged(envelope=envelope, exit_code=exit_code, wall_s=wall_s)
