"""nanoGPT's standard output: `iter 100: loss 2.3, time …` and `step 250: train loss …, val loss …`.

This row never takes the mean of an evaluation for the loss of a step, nor bits for nats without
saying so.
"""

from __future__ import annotations

import re

from spiketriage.readers.telemetry.consoles.line_format import LineFormat, LineKind
from spiketriage.readers.telemetry.consoles.log_points import LogPoints
from spiketriage.readers.telemetry.series.points import FROM_ZERO

NAME = "nanogpt-stdout"
TELLS = (
    "Loss of the last micro-batch at logged steps, mean training and validation loss at "
    "evaluations, and times."
)
CANNOT = "The gradient norm, the learning rate, and the loss of any rank but 0."

_LOSS = "the last micro-batch of the printing rank, times the accumulation steps"


def _in_bits(match: re.Match[str], log: LogPoints) -> None:
    """Forks that count in bits say so behind the loss."""
    if match["unit"]:
        unit = match["unit"].strip()
        log.trust(
            "loss", f"{_LOSS}; in {unit} (bits) as written, not in nats: times 0.6931 it is nats"
        )
        log.say(f"losses are in {unit}, bits a character or byte, not in nats a token")


FORMAT = LineFormat(
    name=NAME,
    anchors=("iter ", "step "),
    lines=(
        LineKind(
            pattern=re.compile(
                r"iter (?P<step>\d{1,18}): loss (?P<loss>[-+\w.]{1,40})"
                r"(?P<unit> (?:BPC|bpc|BPB|bpb))?"
                r"(?:, time (?P<ms>[\d.]{1,40})ms)?(?:, mfu (?P<mfu>-?[\d.]{1,40})%)?"
            ),
            cells={"loss": "loss", "ms": "time", "mfu": "mfu"},
            needs=frozenset({"loss"}),
            from_zero=True,
        ),
        LineKind(  # an evaluation comes before the training of its iteration
            pattern=re.compile(
                r"step (?P<step>\d{1,18}): train loss (?P<train>[-+\w.]{1,40})(?P<unit> \w{3})?, "
                r"val loss (?P<val>[-+\w.]{1,40})"
            ),
            cells={"train": "train loss", "val": "val loss"},
            needs=frozenset({"val loss"}),
            is_evaluation=True,
        ),
    ),
    near=re.compile(r"\A(?:iter|step) \d+:"),
    own={"time": "time/step_s"},
    milliseconds=frozenset({"time"}),
    meanings={"loss": _LOSS, "mfu": "in percent, a running mean; -100 before the first"},
    notes=(FROM_ZERO,),
    beside=_in_bits,
)
claims, read = FORMAT.claims, FORMAT.read
