"""The harness: what a user writes once so that their own trainer can be replayed.

This module states the contract and never contains a trainer; what a harness cannot do it leaves out
of `capabilities`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from spiketriage.nouns.telemetry import Identity
from spiketriage.train.generations.rank_state import StateDigests
from spiketriage.train.recording.recorder import Recorder
from spiketriage.train.recording.step_recorder import StepRecorder


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a factory is given, on every rank, after the process group has started."""

    run: Path
    code: Path
    rank: int
    world_size: int
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """The factors that one pass may change; `deployed` leaves the trainer as it is."""

    precision: str = "deployed"
    kernel: str = "deployed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What a load left in memory: the step it stands at and the digests of what this rank holds."""

    generation: str
    step: int
    digests: StateDigests


class Harness(Protocol):
    """A trainer that can be replayed. Losses are sums and counts, never means."""

    def environment(self) -> Identity:
        """World, threads, precision, kernel, code and config digests of this process."""
        ...

    def capabilities(self) -> frozenset[str]:
        """The factor values that this harness can set, as `<factor>=<value>` (`kernel=math`).

        Anything absent is reported as not testable, never as passed.
        """
        ...

    def load(self, generation: Path, loader: str) -> Loaded:
        """Load a generation by the `deployed` or `verified` loader; returns its digests."""
        ...

    def ids(self, step: int) -> Any:
        """The name of this rank's batch at `step`: JSON, a pure function of the loaded cursor."""
        ...

    def read(self, ids: Any) -> Any:
        """The raw content that `ids` name."""
        ...

    def build(self, raw: Any) -> Any:
        """Inputs, labels, valid flags and mask from raw content, by the deployed code."""
        ...

    def forward_backward(self, batch: Any, overrides: Overrides, record: StepRecorder) -> None:
        """One pass on the current state, recorded up to the reduced gradient.

        It changes nothing and is collective.
        """
        ...

    def step(self, step: int, recorder: Recorder, ids: Any = None) -> None:
        """Execute and record step `step`, on its own batch or on `ids`; collective.

        Raises:
            StepNotTakenError: on every rank alike, the trainer's own loop ended before that step.
        """
        ...

    def lr(self, step: int) -> float:
        """The learning rate that the trainer will apply at `step`."""
        ...

    def hparams(self) -> Mapping[str, Any]:
        """Hyper-parameters as the trainer holds them now."""
        ...


class Factory(Protocol):
    """`package.module:factory`: makes the harness of one rank."""

    def __call__(self, context: Context) -> Harness:
        """Build the trainer; loads nothing yet."""
        ...
