"""Rows of a tracker that numbers its log calls (W&B, trackio), put at the step that the run itself logs if it does.

This module never mixes the two counts in one run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spiketriage.readers.telemetry.series import scalars
from spiketriage.readers.telemetry.series.attempts import Traced
from spiketriage.readers.telemetry.series.names import Names
from spiketriage.readers.telemetry.series.rows import Place, Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class CallKeys:
    """What the tracker itself adds to a row.

    The number of the call, its UNIX time, and all keys that are its own.
    """

    number: str
    time: str
    own: frozenset[str]


def trace_calls(
    source: str, calls: Sequence[Mapping[str, object]], names: Names, keys: CallKeys
) -> Traced:
    """The series of one run, with notes on what its steps are."""
    logged: dict[str, object] = {
        key: value for call in calls for key, value in call.items() if key not in keys.own
    }
    step_key = names.step_key(logged)
    trust = (
        f"at the logged {step_key}"
        if step_key
        else f"{keys.number} counts log calls, not optimizer steps"
    )
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
        values = {
            key: value
            for key, value in scalars.flat(call).items()
            if key not in keys.own and key != step_key
        }
        rows.put(
            values,
            place=Place(None, None),
            step=last,
            time_s=float("nan") if time_s is None else time_s,
        )
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
