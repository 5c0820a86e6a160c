"""Check: the logs show what they claim to show.

A metric that was never wired, a filtered NaN, a step that had to be counted: context, since it
accuses the log alone.
"""

from __future__ import annotations

from spiketriage.diagnosis.findings import agrees
from spiketriage.diagnosis.role import AGAINST_THE_RUN, Emission
from spiketriage.diagnosis.view import View
from spiketriage.nouns.incident import Finding, Where
from spiketriage.nouns.listing import counted, listed
from spiketriage.nouns.series import Series

NAME = "series-trust"
EMITS = {NAME: Emission(role=AGAINST_THE_RUN, dates_onset=True)}


def run(view: View) -> tuple[Finding, ...]:
    """One finding: the series that must not be believed, with the first one's reason."""
    logged: list[Series] = []
    for log in view.telemetry.logs:
        logged.extend(log.series)
    doubtful = [series for series in logged if not series.trusted]
    if doubtful:
        first = doubtful[0]
        return (
            Finding(
                name=NAME,
                outcome="differs",
                summary=f"not to be believed: {listed([series.name for series in doubtful])}: "
                f"{first.trust}",
                where=Where(key=first.name, path=first.source),
                expected="a series that shows what its name says",
                seen=first.trust,
                magnitude=float(len(doubtful)),
                judged=False,
            ),
        )
    if not logged:
        return ()  # our recorder's telemetry says itself what it could not record
    num_hidden = sum(len(series.reasons) for series in logged)
    remark = ""
    if num_hidden:
        remark = f"; {counted(num_hidden, 'value')} that the logs hide were made visible"
    return (
        agrees(
            NAME,
            f"nothing speaks against the {len(logged)} series of the logs{remark}",
            judged=False,
        ),
    )
