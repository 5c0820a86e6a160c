"""Standard output of a made-up trainer: `[pace] at=12 nll=3.21 gn=0.84 eta=1.0e-03`.

This row never takes its `eta` for a time: it is the learning rate.
"""

from __future__ import annotations

import re

from spiketriage.readers.telemetry.consoles.line_format import LineFormat, LineKind

NAME = "paced-stdout"
TELLS = "Its loss, its unclipped norm and its rate at every step of a paced run."
CANNOT = "Any digit beyond the third of a loss, and restarts that repeat no step."

FORMAT = LineFormat(
    name=NAME,
    anchors=("[pace] ",),
    lines=(
        LineKind(
            pattern=re.compile(
                r"\[pace\] at=(?P<step>\d{1,18}) nll=(?P<nll>[-+\w.]{1,40}) "
                r"gn=(?P<gn>[-+\w.]{1,40}) eta=(?P<eta>[-+\w.]{1,40})"
            ),
            cells={"nll": "nll", "gn": "gn", "eta": "eta"},
        ),
    ),
    own={"nll": "loss/mean", "gn": "grad/norm", "eta": "lr"},
)
claims, read = FORMAT.claims, FORMAT.read
