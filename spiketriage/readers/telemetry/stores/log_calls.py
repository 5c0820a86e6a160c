"""Rows of a tracker that numbers its log calls (W&B, trackio), put at the step that the run logs.

This module never mixes the two counts in one run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spiketriage.readers.telemetry.series import scalars
from spiketriage.readers.telemetry.series.attempts import Traced
from spiketriage.readers.telemetry.series.names import Names
from spiketriage.readers.telemetry.series.points import UNKNOWN_TIME
from spiketriage.readers.telemetry.series.rows import Place, Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class CallKeys:
    """What the tracker adds to a row: the call's number, its UNIX time, and all keys of its own."""

    number: str
    time: str
    own: frozenset[str]


def trace_calls(
    source: str, calls: Sequence[Mapping[str, object]], names: Names, keys: CallKeys
) -> Traced:
    """The series of one run, with notes on what its steps are."""
    logged: dict[str, object] = {}
    for call in calls:
        logged.update(call)
    step_key = names.step_key({key: logged[key] for key in logged if key not in keys.own})
    trust = f"{keys.number} counts log calls, not optimizer steps"
    if step_key:
        trust = f"at the logged {step_key}"
    rows = Rows(source=source, names=names, trusted=step_key is not None, trust=trust)
    num_carried, last = 0, None
    for call in calls:
        rows.num_objects += 1
        step = scalars.step(call.get(step_key or keys.number))
        num_carried += step is None and last is not None
        last = last if step is None else step
        if last is None:
            rows.num_no_step += 1
            continue
        time_s = scalars.number(call.get(keys.time))
        if time_s is None:
            time_s = UNKNOWN_TIME
        values = scalars.flat(call)
        for key in (step_key, *keys.own):
            values.pop(key or "", None)
        rows.put(values, place=Place(None, None), step=last, time_s=time_s)
    traced = rows.trace()
    notes = [*rows.notes(), *rows.problems(), *traced.notes]
    if num_carried:
        notes.append(
            f"{num_carried} rows carry no {step_key or keys.number} and stand at the step "
            "of the row before"
        )
    if calls and not step_key:
        notes.append(f"no step key was logged: steps are {keys.number}, which counts log calls")
    return replace(traced, notes=tuple(notes))
