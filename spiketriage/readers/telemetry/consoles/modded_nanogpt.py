"""modded-nanogpt's logs: `step:10/1480 train_loss:… train_time:…ms`, below the script's source.

This row never takes a line of that source for a step: where a number belongs, only one will do.
"""

from __future__ import annotations

import re

from spiketriage.readers.telemetry.consoles.line_format import LineFormat, LineKind

NAME = "modded-nanogpt"
TELLS = (
    "Validation loss at its steps, training loss where the run prints it, and times, below "
    "the script's "
    "own source code."
)
CANNOT = "The gradient norm, the learning rate and, in many runs, the training loss."

_STEP = LineKind(
    pattern=re.compile(
        r"step:(?P<step>\d{1,18})/(?P<total>\d{1,18})(?P<rest>(?: \w{1,40}:\S{1,40})+)\s*\Z"
    ),
    pairs=re.compile(r"(?P<key>\w{1,40}):(?P<value>\S{1,400}?)(?P<ms>ms)?(?!\S)"),
)
FORMAT = LineFormat(
    name=NAME,
    anchors=("step:",),
    lines=(_STEP,),
    near=re.compile(r"\Astep:\d+/\d"),
    own={"step_avg": "time/step_s"},
    meanings={
        "step_avg": "in seconds; a mean since the clock was started, not the time of one step",
        "train_time": "in seconds, since the clock was started",
    },
    identity={"total": "total_steps"},
    is_line=lambda line: _STEP.pattern.match(line.raw),  # no launcher stands before it
)
claims, read = FORMAT.claims, FORMAT.read
