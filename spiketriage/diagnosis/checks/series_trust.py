"""Check: the logs show what they claim to show.

A metric that was never wired, a filtered NaN, a step that had to be counted: context, since it
accuses the log alone.
"""

from __future__ import annotations

from spiketriage.diagnosis.findings import agrees, counted, listed
from spiketriage.diagnosis.role import AGAINST_THE_RUN, Emission
from spiketriage.diagnosis.view import View
from spiketriage.nouns.incident import Finding, Where

NAME = "series-trust"
EMITS = {NAME: Emission(role=AGAINST_THE_RUN, dates_onset=True)}


def run(view: View) -> tuple[Finding, ...]:
    """One finding: the series that must not be believed, with the first one's reason."""
    series = [one for log in view.telemetry.logs for one in log.series]
    doubtful = [one for one in series if not one.trusted]
    hidden = sum(len(one.reasons) for one in series)
    if doubtful:
        first = doubtful[0]
        return (
            Finding(
                name=NAME,
                outcome="differs",
                summary=f"not to be believed: {listed([one.name for one in doubtful])}: "
                f"{first.trust}",
                where=Where(key=first.name, path=first.source),
                expected="a series that shows what its name says",
                seen=first.trust,
                magnitude=float(len(doubtful)),
                judged=False,
            ),
        )
    if not series:
        return ()  # our recorder's telemetry says itself what it could not record
    if hidden:
        told = f"; {counted(hidden, 'value')} that the logs hide were made visible"
    else:
        told = ""
    return (
        agrees(
            NAME, f"nothing speaks against the {len(series)} series of the logs{told}", judged=False
        ),
    )
