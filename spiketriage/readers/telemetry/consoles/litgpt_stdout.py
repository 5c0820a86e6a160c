"""litgpt's standard output: `Epoch 1 | iter 1000 step 125 | loss train: 2.346, val: n/a | …`.

This row never takes an iteration (a micro-batch) for a step; several lines may have the same step.
"""

from __future__ import annotations

import re

from spiketriage.readers.telemetry.consoles.line_format import LineFormat, LineKind

NAME = "litgpt-stdout"
TELLS = "Training loss to three decimals by iteration and step, validation loss and iteration time."
CANNOT = "The gradient norm and the learning rate."

FORMAT = LineFormat(
    name=NAME,
    anchors=("Epoch ",),
    lines=(
        LineKind(
            pattern=re.compile(
                r"Epoch (?P<epoch>\d{1,9}) \| iter (?P<iter>\d{1,18}) step (?P<step>\d{1,18}) \| "
                r"loss train: (?P<train>[-+\w.]{1,40}),? ?(?:val: (?P<val>[-+\w./]{1,40}))?"
                r"(?: \| iter time: (?P<ms>[\d.]{1,40}) ms)?"
            ),
            cells={"train": "loss train", "val": "loss val", "iter": "iter", "ms": "iter time"},
            needs=frozenset({"loss train"}),
        ),
    ),
    near=re.compile(r"\AEpoch \d+ \| iter \d"),
    own={"loss train": "loss/mean"},
    milliseconds=frozenset({"iter time"}),
    meanings={
        "loss train": "a running mean over micro-batches; a step with several lines has several "
        "values",
        "iter time": "in seconds, of one micro-batch",
    },
    notes=("litgpt's CSV logger counts iterations from 0, this output from 1",),
)
claims, read = FORMAT.claims, FORMAT.read
