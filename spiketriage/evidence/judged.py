"""What was looked at when a run was called healthy or not: signals, rows, and by which rules.

This module never judges a value; it counts those that were.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from spiketriage.detect.bands import CENTRE_WINDOW
from spiketriage.nouns.incident import SETTINGS_NAME
from spiketriage.nouns.listing import counted, listed
from spiketriage.nouns.series import LogFacts
from spiketriage.nouns.telemetry import MetricColumn

LOSS = "loss/mean"  # what a reader calls the loss of training, whatever the log does
# The signals that every run has; the others are judged where they were recorded.
EXPECTED = {"loss": "loss", "grad_norm": "gradient norm"}
_OTHERS = {
    "update_norm": "update norm",
    "rms_t": "RMS_t",
    "logz": "logZ",
    "attention_max": "attention maximum",
    "loss_scale": "loss scale",
}
# What a key of somebody's own loss, or of its gradient, tends to hold.
_LOSS_LIKE = ("loss", "nll", "xent", "cross_entropy", "perplexity")
_NOT_TRAINING = ("eval", "valid", "val_", "val/", "test", "aux", "balanc", "scale", "z_loss")
MAX_CANDIDATES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One signal: how many of its rows were judged, and whether all rules could see enough."""

    signal: str
    num_rows: int

    @property
    def rules(self) -> str:
        """By which rules: a band needs rows to learn from, and knows nothing before."""
        if self.num_rows > CENTRE_WINDOW:
            return "full rules"
        return "start-up rule only"

    @property
    def sentence(self) -> str:
        """`300 rows, full rules`."""
        return f"{counted(self.num_rows, 'row')}, {self.rules}"


def what_was_judged(columns: Mapping[str, MetricColumn]) -> Iterator[Judged]:
    """The signals that were recorded at all, by name."""
    for name, signal in (EXPECTED | _OTHERS).items():
        num_rows = int(np.count_nonzero(columns[name].is_logged))
        if num_rows:
            yield Judged(signal=signal, num_rows=num_rows)


def summary(judged: Collection[Judged]) -> str:
    """One line: every signal with its rows and rules, and which of the usual ones is on no line."""
    parts = [f"{signal.signal} ({signal.sentence})" for signal in judged]
    names = {signal.signal for signal in judged}
    absent = [signal for signal in EXPECTED.values() if signal not in names]
    if judged and absent:
        parts.append(f"no {' and no '.join(absent)} on any line")
    return "; ".join(parts)


def is_loss_among(judged: Iterable[Judged]) -> bool:
    """Whether the loss of training itself was judged."""
    return any(signal.signal == EXPECTED["loss"] for signal in judged)


def candidates(logs: Iterable[LogFacts]) -> tuple[str, ...]:
    """Keys that look like the loss of training and are not known as such, most points first."""
    sizes: dict[str, int] = {}
    for log in logs:
        for series in log.series:
            key = series.written_as.lower()
            if series.name == LOSS:
                continue  # known, be it of an attempt that does not count
            is_loss = any(word in key for word in _LOSS_LIKE)
            if is_loss and not any(word in key for word in _NOT_TRAINING):
                sizes[series.written_as] = sizes.get(series.written_as, 0) + len(series.steps)
    return tuple(sorted(sizes, key=lambda key: -sizes[key])[:MAX_CANDIDATES])


def question(keys: Sequence[str]) -> str:
    """What to do where nothing was judged: which keys may be the loss, and the lines to paste."""
    if not keys:
        return "no key looks like a loss; name yours under [columns] in spiketriage.toml"
    line = f'[columns] "loss/mean" = {json.dumps(keys[0])}'
    return f"candidates: {listed(keys)}; say which in spiketriage.toml: {line}"


def mapping_command(run: Path, keys: Sequence[str]) -> str:
    """The command that writes settings in which the first of `keys` is the loss.

    Empty where there is no candidate, or a settings file that it would overwrite.
    """
    settings = run / SETTINGS_NAME
    if not keys or settings.exists():
        return ""
    text = (
        'schema = 1\n[run]\nid = %s\ntelemetry = "."\ncheckpoints = "."\nlogs = []\n'
        '[columns]\n"loss/mean" = %s\n'
    )
    words = ["printf", text.replace("\n", "\\n"), json.dumps(run.name), json.dumps(keys[0])]
    return f"{shlex.join(words)} > {shlex.quote(str(settings))}"
