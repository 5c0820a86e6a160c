"""torchtitan's golden-loss files: a step and a loss a line, in full precision, and nothing else.

This row never claims a table whose steps do not grow, or whose columns are more than step, loss,
gradient norm.
"""

from __future__ import annotations

import re
from itertools import pairwise

from spiketriage.readers.look import HEAD_BYTES, Look
from spiketriage.readers.telemetry.consoles.line_format import LineFormat, LineKind
from spiketriage.readers.telemetry.consoles.log_numbers import number
from spiketriage.readers.telemetry.series.lines import encoding_of

NAME = "torchtitan-golden"
TELLS = "Loss of every step in full precision, and the gradient norm where there is a third column."
CANNOT = (
    "The learning rate, times, and the names of its columns: that the second is the loss is a "
    "convention."
)

_LINE = re.compile(
    r"(?P<step>\d{1,9})[ \t]+(?P<loss>[-+]?[\w.+-]{1,40})"
    r"(?:[ \t]+(?P<norm>[-+]?[\w.+-]{1,40}))?\s*\Z"
)
FORMAT = LineFormat(
    name=NAME,
    anchors=("",),
    lines=(
        LineKind(
            pattern=_LINE,
            cells={"loss": "loss", "norm": "grad_norm"},
            needs=frozenset({"loss"}),
        ),
    ),
    near=re.compile(r"\S"),
    meanings={
        "loss": "the file names no column; by torchtitan's convention the second is the global "
        "average loss"
    },
    is_raw=True,
)
read = FORMAT.read


def claims(look: Look) -> float:
    """How sure we are of a golden-loss file: every line is a growing step and a number."""
    if look.is_folder or look.is_lfs_pointer or encoding_of(look.head) is None:
        return 0.0
    steps = []
    lines = look.head.decode("utf-8-sig", errors="replace").splitlines()
    if look.size_bytes > HEAD_BYTES:
        del lines[-1:]  # the head may end inside it
    for line in lines:
        match = _LINE.match(line)
        if match is None or number(match["loss"]) is None or "." not in line:
            return 0.0
        steps.append(int(match["step"]))
    if len(steps) < 3 or not all(later > earlier for earlier, later in pairwise(steps)):
        return 0.0
    if "golden" not in look.path.name.lower():
        return 0.6
    return 0.8
