"""nanotron's standard output: `key: value` cells between bars, numbers shortened to three digits.

This row never pretends to more precision than three significant digits have.
"""

from __future__ import annotations

import re

from spiketriage.readers.telemetry.consoles.line_format import LineFormat, LineKind
from spiketriage.readers.telemetry.consoles.log_points import LogPoints

NAME = "nanotron-stdout"
TELLS = "Loss, learning rate, unclipped gradient norm, consumed tokens and times by iteration."
CANNOT = "More than three digits of a value, the year, or any data-parallel group but one."


def _printed_by(match: re.Match[str], log: LogPoints) -> None:
    if match["place"]:
        log.identity.setdefault("printed_by", match["place"].replace("|", " "))


FORMAT = LineFormat(
    name=NAME,
    anchors=("iteration: ",),
    lines=(
        LineKind(
            pattern=re.compile(
                r"\A(?:|.*?\[(?:\w+)\|(?P<place>DP=\d+\|PP=\d+\|TP=\d+)[^\]]{0,300}\]: ?)"
                r"iteration: (?P<step>\d{1,18}) / (?P<total>\d{1,18}) \| (?P<rest>.*)"
            ),
            pairs=re.compile(
                r"(?:\A|(?<= \| ))\s*(?P<key>[^|:]{1,120}): (?P<value>[^|]*?)(?= \| |\s*\Z)"
            ),
        ),
    ),
    near=re.compile(r"\A(?=.* / )(?=.*\|)"),
    own={
        "time_per_iteration_ms": "time/step_s",
        "elapsed_time_per_iteration_ms": "time/step_s",
        "consumed_tokens": "tokens/total",
    },
    milliseconds=frozenset({"time_per_iteration_ms", "elapsed_time_per_iteration_ms"}),
    meanings={"grad_norm": "it is the norm before clipping"},
    precision="printed with three significant digits",
    notes=(
        "values have three significant digits: read TensorBoard or W&B of the same run for "
        "exact ones",
    ),
    identity={"total": "total_iterations"},
    is_short=True,
    beside=_printed_by,
)
claims, read = FORMAT.claims, FORMAT.read
