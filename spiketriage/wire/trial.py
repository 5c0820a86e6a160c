"""A trial as it is asked for and as it is answered: `trial.json`, the launch, `done.json`.

A trial is named by its content, so that the same question is never run twice; this module never
starts a process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from spiketriage.digests import of_bytes

SCHEMA = "spiketriage.trial/1"
LAUNCH_SCHEMA = "spiketriage.launch/1"

Kind = Literal["replay", "probe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """Everything that a trial may change, one field a factor; equal fields mean the same condition.

    `state` is `<generation>@<step>`: that generation, advanced to that step as production did.
    `batch` is `recorded`, `step <n>` (the batch of another step), or `skip <n>` (that step left
    out).
    """

    state: str
    batch: str = "recorded"
    code: str = "deployed"
    loader: str = "deployed"
    placement: str = "same"
    precision: str = "deployed"
    kernel: str = "deployed"

    def differing(self, other: Factors) -> tuple[str, ...]:
        """Names of the factors in which two trials differ."""
        names: list[str] = []
        for factor in fields(self):
            if getattr(self, factor.name) != getattr(other, factor.name):
                names.append(factor.name)
        return tuple(names)

    @property
    def generation(self) -> str:
        """The generation that is loaded."""
        return self.state.partition("@")[0]

    @property
    def advance_to(self) -> int:
        """The step up to which the loaded state is advanced."""
        return int(self.state.partition("@")[2])

    @property
    def skipped(self) -> int | None:
        """The step that is left out, if any."""
        if self.batch.startswith("skip "):
            return int(self.batch.removeprefix("skip "))
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One execution of steps.

    A `replay` executes `first_step..last_step` and changes state; a `probe` runs one forward and
    backward pass on the state at `factors.advance_to` and changes nothing. `ids` (per rank) are
    production's own, as recorded; `repeat` numbers identical trials. `run_key` ties the trial to
    generation, code and config digests.
    """

    kind: Kind
    purpose: str
    factors: Factors
    first_step: int
    last_step: int
    ids: Mapping[str, Any] = field(default_factory=dict)
    repeat: int = 0
    run_key: str = ""

    @property
    def key(self) -> str:
        """Content address: equal questions, whatever their purpose, have equal keys."""
        question = asdict(replace(self, purpose=""))
        return of_bytes(json.dumps(question, sort_keys=True).encode())[:16]

    @property
    def num_steps(self) -> int:
        """Step executions that the trial itself asks for, without the shared prefix."""
        if self.kind == "probe":
            return 1
        num_steps = self.last_step - self.first_step + 1
        if self.factors.skipped is not None:
            num_steps -= 1
        return num_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What a group of worker processes is asked: one code, one placement, any number of trials."""

    run: str
    harness: str
    python_path: tuple[str, ...]
    trials_folder: str
    checkpoints: str
    trials: tuple[Trial, ...]
    num_threads: int = 1


def trial_to_json(trial: Trial) -> dict[str, Any]:
    """The trial as the JSON object of `trial.json`."""
    return {"schema": SCHEMA, "key": trial.key, **asdict(trial)}


def trial_from_json(value: Mapping[str, Any]) -> Trial:
    """The trial from its JSON object.

    Raises:
        ValueError, KeyError, TypeError: the object is not a trial of this schema.
    """
    if value.get("schema") != SCHEMA:
        raise ValueError(f"schema {value.get('schema')!r}, expected {SCHEMA!r}")
    kept = {key: item for key, item in value.items() if key not in ("schema", "key")}
    kept["factors"] = Factors(**kept["factors"])
    return Trial(**kept)


def launch_to_json(launch: Launch) -> dict[str, Any]:
    """The launch as the JSON object that the workers read."""
    plain = {f.name: getattr(launch, f.name) for f in fields(launch) if f.name != "trials"}
    return {
        "schema": LAUNCH_SCHEMA,
        **plain,
        "trials": [trial_to_json(trial) for trial in launch.trials],
    }


def launch_from_json(value: Mapping[str, Any]) -> Launch:
    """The launch from its JSON object.

    Raises:
        ValueError, KeyError, TypeError: the object is not a launch of this schema.
    """
    if value.get("schema") != LAUNCH_SCHEMA:
        raise ValueError(f"schema {value.get('schema')!r}, expected {LAUNCH_SCHEMA!r}")
    kept = {key: item for key, item in value.items() if key != "schema"}
    kept["trials"] = tuple(trial_from_json(item) for item in kept["trials"])
    kept["python_path"] = tuple(kept["python_path"])
    return Launch(**kept)
