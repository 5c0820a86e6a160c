"""torchtitan's standard output: one line a logged step, in colours, and validation lines beside.

This row never takes a validation line for a training step.
"""

from __future__ import annotations

import re

from spiketriage.readers.telemetry.consoles.line_format import LineFormat, LineKind
from spiketriage.readers.telemetry.consoles.text_lines import TextLine

NAME = "torchtitan-stdout"
TELLS = "Global mean loss and gradient norm by step, memory, tokens per second and validation loss."
CANNOT = (
    "More than five decimals of the loss, its maximum over ranks (only TensorBoard has it), or "
    "the learning rate."
)

_STEP = r"step:\s{0,20}(?P<step>\d{1,18})\s+(?P<rest>\S.*)"
_CELL = re.compile(r"(?P<key>[A-Za-z_]\w{0,60}):\s{0,20}(?P<value>[-+\w.,]+?)(?:GiB)?(?![-+\w.,])")
_NEEDS = frozenset({"loss"})
# Not verl's `actor/pg_loss:`.
_CELLS = (re.compile(r"(?<![\w/])loss:"), re.compile(r"(?<![\w/])grad_norm:"))


def _is_line(line: TextLine) -> bool:
    """Other trainers begin lines with `step:`, too; only this one prints both of these cells."""
    is_step = re.match(rf"(?:validate )?{_STEP}", line.text) is not None
    return is_step and all(cell.search(line.text) for cell in _CELLS)


FORMAT = LineFormat(
    name=NAME,
    anchors=("step:",),
    lines=(
        LineKind(pattern=re.compile(_STEP), pairs=_CELL, needs=_NEEDS),
        LineKind(
            pattern=re.compile(rf"validate {_STEP}"),
            pairs=_CELL,
            needs=_NEEDS,
            prefix="validate ",
            is_evaluation=True,
        ),
    ),
    near=re.compile("loss:"),
    meanings={
        "memory": "in GiB, the most that was reserved since the line before",
        "mfu": "in percent",
    },
    is_short=True,
    is_line=_is_line,
)
claims, read = FORMAT.claims, FORMAT.read
