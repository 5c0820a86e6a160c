"""What is a run's own: what lies in its folder, and where its settings say if that is allowed.

This module never opens a file: it looks where names and links lead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from spiketriage.errors import RefusedError
from spiketriage.nouns.incident import SETTINGS_NAME, RunSettings


def places_outside(run: Path, named: Mapping[str, Path]) -> dict[str, Path]:
    """By the key of the settings, the places in `named` that lie outside the run."""
    outside = {}
    for key, path in named.items():
        place = _beyond(path, [run])
        if place is not None:
            outside[key] = place
    return outside


def require_allowed(settings: RunSettings, allowed: Collection[str], *, hint: str) -> None:
    """Do nothing unless the settings name a place outside the run that nobody allowed.

    Raises:
        RefusedError: they do.
    """
    for key, place in settings.outside.items():
        if str(place) not in allowed:
            raise RefusedError(
                f"{settings.run / SETTINGS_NAME}: {key} names {place}, outside the run: nothing of "
                "it is read or copied before somebody allows that",
                hint=hint,
            )


def led_out(settings: RunSettings, path: Path) -> Path | None:
    """Where a link at or above `path` leads, if that is not the run's own; else None."""
    return _beyond(path, _roots(settings))


def _roots(settings: RunSettings) -> Iterator[Path]:
    yield settings.run
    yield from settings.outside.values()


def _beyond(path: Path, roots: Iterable[Path]) -> Path | None:
    try:
        place = path.resolve()
        if any(place.is_relative_to(root.resolve()) for root in roots):
            return None
    except (OSError, RuntimeError):  # a link to itself: whoever opens it says so
        return None
    return place
