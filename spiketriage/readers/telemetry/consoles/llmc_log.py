"""llm.c: its `main.log` (`s:STEP trl:…`) and its standard output (`step 1001/19560 | loss …`).

This row never mixes the two countings: the file counts training steps from 0, and is brought to
standard output's.
"""

from __future__ import annotations

import re

from spiketriage.readers.telemetry.consoles.line_format import LineFormat, LineKind
from spiketriage.readers.telemetry.consoles.log_points import LogPoints
from spiketriage.readers.telemetry.series.points import FROM_ZERO

NAME = "llmc"
TELLS = (
    "Loss, learning rate and gradient norm of every step, validation loss, and llm.c's own "
    "z-scores on stdout."
)
CANNOT = (
    "More than four decimals of the loss in main.log, and more than six of the learning rate, "
    "whose end reads as zero."
)

_FILE = re.compile(
    r"s:(?P<step>\d{1,18}) (?P<rest>(?:tel|trl|eval|lr|norm):\S{1,40}(?: \w{1,20}:\S{1,40})*)\s*\Z"
)
_FILE_CELLS = re.compile(r"(?P<key>\w{1,40}):(?P<value>\S+)")
_STDOUT = re.compile(
    r"step\s{1,20}(?P<step>(?!0/)\d{1,18})/(?P<total>\d{1,18}) \| (?:train )?loss "
    r"(?P<loss>[-\w.+]{1,40})(?:\s*\((?P<loss_z>[-+]?[\w.]{1,40})z\))?"
    r"(?:.*?\|\s*norm (?P<norm>[-\w.+]{1,40})(?:\s*\((?P<norm_z>[-+]?[\w.]{1,40})z\))?)?"
    r"(?:.*?\|\s*lr (?P<lr>[-\w.+]{1,40})(?:\s*\((?P<lr_z>[-+]?[\w.]{1,40})z\))?)?"
    r"(?:.*?\|\s*(?P<ms>[\d.]{1,40}) ms\b)?"
)


def _counting(match: re.Match[str], log: LogPoints) -> None:
    """What only the file says, and what only standard output says."""
    if match.re is _FILE:
        log.say(FROM_ZERO)
        log.trust("lr", "printed with six decimals: below 0.0000005 it reads as zero")
    elif match.re is _STDOUT:
        log.identity["total_steps"] = match["total"]


FORMAT = LineFormat(
    name=NAME,
    anchors=("s:", "step", "val loss"),
    lines=(
        LineKind(pattern=_FILE, pairs=_FILE_CELLS, needs=frozenset({"trl"}), from_zero=True),
        # An evaluation comes before the training of its step.
        LineKind(pattern=_FILE, pairs=_FILE_CELLS, is_evaluation=True),
        LineKind(
            pattern=_STDOUT,
            cells={
                "loss": "loss",
                "loss_z": "loss z-score",
                "ms": "time",
                "norm": "norm",
                "norm_z": "norm z-score",
                "lr": "lr",
                "lr_z": "lr z-score",
            },
            needs=frozenset({"loss"}),
        ),
        # Measured before the step that would come next.
        LineKind(
            pattern=re.compile(r"val loss (?P<loss>[-\w.+]{1,40})\s*\Z"),
            cells={"loss": "val loss"},
            is_evaluation=True,
        ),
    ),
    near=re.compile(r"\A(?:s:\d|step\s+\d+/\d+)"),
    own={"time": "time/step_s", "trl": "loss/mean"},
    milliseconds=frozenset({"time"}),
    sure=0.97,  # above jsonl and others, whose keys `s` and `step` look alike
    is_line=lambda line: _FILE.match(line.text) or _STDOUT.match(line.text),
    beside=_counting,
)
claims, read = FORMAT.claims, FORMAT.read
