"""Which generations may go.

None inside the time that a fault needs to be seen, and never the one before it.

This module never touches a pinned generation, one without `COMPLETE`, or the newest one.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from spiketriage import durable
from spiketriage.errors import UsageError
from spiketriage.train.generations.generation import generations, newest_known_good
from spiketriage.wire import generation as wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long generations stay.

    `detection_delay_steps` is how late a fault may be seen after it happened.

    An attention logit that grows for days, or a bit that flipped, is seen thousands of steps later:
    what is younger than that cannot be known to be good. `keep_newest` generations stay in any
    case.
    """

    detection_delay_steps: int
    keep_newest: int = 2

    def __post_init__(self) -> None:
        if self.detection_delay_steps < 0 or self.keep_newest < 1:
            raise UsageError(
                f"retention {self}: the delay is at least 0 steps, and at least one "
                "generation stays"
            )


def retain(generations_folder: Path, rule: Retention, *, newest_step: int) -> tuple[Path, ...]:
    """Delete what `rule` lets go after the save of `newest_step`, and return it; call on one rank.

    Kept are the newest, everything younger than the detection delay, the newest known-good one that
    is older, and what is pinned: by a file `PINNED` in it, or by a hard link to one of its files
    (`spiketriage freeze` makes these).
    """
    horizon = newest_step - rule.detection_delay_steps
    anchor = newest_known_good(generations_folder, before=horizon + 1)
    if anchor is None:
        # nothing old enough is known to be good: whatever is there may be the last resort
        return ()
    complete = [
        path for path in generations(generations_folder) if (path / wire.COMPLETE_NAME).is_file()
    ]
    candidates = [path for path in complete[rule.keep_newest :] if path != anchor]
    candidates += (generations_folder / wire.SUPERSEDED).glob("step-*.*")
    gone = []
    for path in candidates:
        if _step(path) <= horizon and not is_pinned(path):
            _delete(path)
            gone.append(path)
    return tuple(gone)


def is_pinned(generation: Path) -> bool:
    """Whether somebody holds on to it."""
    if (generation / wire.PINNED_NAME).exists():
        return True
    return any(path.is_file() and path.stat().st_nlink > 1 for path in generation.rglob("*"))


def _step(path: Path) -> int:
    # What was moved aside has a number behind its name.
    step = wire.step_of(path.name.partition(".")[0])
    assert step is not None
    return step


def _delete(generation: Path) -> None:
    """Delete one; its mark of completion goes first, so that half a generation is never taken."""
    (generation / wire.COMPLETE_NAME).unlink(missing_ok=True)
    durable.sync(generation)
    shutil.rmtree(generation)
