"""Where a command works: in the run folder it was given, or the one it stands in.

This module looks for `spiketriage.toml` and never opens it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from spiketriage.errors import Exit, UsageError
from spiketriage.nouns.incident import StepResult

SETTINGS = "spiketriage.toml"


def find_run(given: Path | None, incidents: Path | None = None) -> Path:
    """Return the run folder: as given, else the nearest at or above the current one.

    A run folder that is not given is known by its settings.

    Raises:
        UsageError: none was given and none is above.
        EvidenceError: the one that was given is no run folder, and no incident lies in it or in
        `incidents`.
    """
    if given is not None:
        if incidents is None and not _holds_incidents(given):
            from spiketriage.readers.settings import require_run

            require_run(given)
        return given
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / SETTINGS).is_file():
            return folder
    raise UsageError(
        f"no run folder: none was named, SPIKETRIAGE_RUN is not set, "
        f"and neither {here} nor a folder above it holds {SETTINGS}",
        hint="spiketriage status RUN",
    )


def find_source(given: Path | None) -> Path:
    """Return the run folder, or the log that was given in its place.

    Raises:
        UsageError: none was given and none is above.
        EvidenceError: what was given is neither.
    """
    if given is not None and given.is_file():
        return given
    return find_run(given)


def _holds_incidents(run: Path) -> bool:
    # What is left of a run is still worth a report when its settings are gone.
    try:
        return (run / ".spiketriage" / "incidents").is_dir()
    except OSError:
        return False


def status_here() -> StepResult:
    """Where the latest incident of the run at hand stands; outside every run, where to begin."""
    given = os.environ.get("SPIKETRIAGE_RUN")
    try:
        run = find_run(Path(given) if given else None)
    except UsageError as error:
        return StepResult(
            incident="",
            exit_code=Exit.DONE,
            verdict="",
            lines=(f"no incident at hand: {error.message}",),
            data={},
            next_commands=("spiketriage demo",),
        )
    from spiketriage.runbook import status

    return status.run(run, incidents=None, incident=None, argv=called())


def called() -> list[str]:
    """Return the command as it was typed, for the journal."""
    return ["spiketriage", *sys.argv[1:]]


def numbers(text: str) -> tuple[int, ...]:
    """Read whole numbers separated by commas.

    Raises:
        UsageError: a part is not a whole number.
    """
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise UsageError(
            f"--seeds expects whole numbers separated by commas, found {text!r}",
            hint="spiketriage rehearse score --seeds 11,12,13",
        ) from None
