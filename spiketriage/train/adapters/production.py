"""The production side of a session: data in order, telemetry into the run, generations when due.

It never judges a step; a rollback or stop is carried out, not decided, here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch.distributed as dist

from spiketriage import durable
from spiketriage.digests import of_file
from spiketriage.nouns.telemetry import Identity
from spiketriage.train.adapters.feed import SessionView
from spiketriage.train.adapters.source import Micro
from spiketriage.train.adapters.state import Parts
from spiketriage.train.generations.generation import (
    Provenance,
    load_verified,
    newest_complete,
    newest_known_good,
    save,
)
from spiketriage.train.generations.rank_state import RankState
from spiketriage.train.generations.retention import Retention, retain
from spiketriage.train.generations.together import place
from spiketriage.train.guarding.guard import Guard, Policy
from spiketriage.train.harness import Loaded
from spiketriage.train.recording.identity import identify
from spiketriage.train.recording.recorder import BUDGET_SHARE, Recorder
from spiketriage.train.recording.step_recorder import StepRecorder

LEFT_OUT = "left_out.json"  # beside the generations: what rollbacks took out of the data


class Production:
    """One process of the job itself; each rollback begins a new session and segment in it.

    `deploy` puts code and config into the run and returns the code's folder there.
    """

    acts, loader = True, "deployed"

    def __init__(
        self,
        run: Path,
        *,
        deploy: Callable[[Parts], Path],
        save_every: int | None,
        retention: Retention | None = None,
        budget_share: float | None = BUDGET_SHARE,
    ) -> None:
        self.run, self.save_every, self.budget_share = run, save_every, budget_share
        self._deploy, self._retention = deploy, retention
        self.generation = newest_complete(run / "checkpoints")
        self.left_out = read_left_out(run)
        self.probe: StepRecorder | None = None
        self.recorder: Recorder
        self._guard: Guard | None = None
        self._parts: Parts
        self._saved_step = -1
        self._is_back = False

    def opened(self, session: SessionView) -> None:
        """Put code and config into the run, then open a segment that has their identity."""
        self._parts = session.parts
        self._identity = identity = identity_of(
            self.run, self._deploy(session.parts), session.parts
        )
        rank = dist.get_rank() if dist.is_initialized() else 0
        self.recorder = Recorder(
            self.run / "telemetry", rank=rank, identity=identity, budget_share=self.budget_share
        )

    def guard(self, policy: Policy, saved: Mapping[str, Any]) -> Guard:
        """The one guard of this process: after a rollback its patience stays."""
        if self._guard is None:
            known_good = None
            if policy.may_roll_back:
                known_good = self._known_good
            self._guard = Guard(policy, state=saved or None, known_good=known_good)
        else:
            self._guard.rolled_back(saved or None)
        return self._guard

    def read(self, generation: Path, parts: Parts) -> RankState:
        """This rank's state, every file and field of the generation verified."""
        state = load_verified(generation, dict(parts.model.named_parameters()))
        # A job that is over already has nothing to save.
        self._saved_step = int(state.cursor["step"])
        return state

    def loaded(self, loaded: Loaded) -> None:
        """On record; a guard that rolled back is meant to know more than the generation."""
        fields = dict(loaded.digests.fields)
        if self._is_back:
            del fields["guard"]
        self.recorder.loaded(
            step=loaded.step,
            generation=loaded.generation,
            fields=fields,
            tensors=loaded.digests.tensors,
        )

    def between(self, session: SessionView) -> None:
        """Save what is due; then the first rank deletes what need not stay."""
        every = self.save_every
        is_due = session.is_save_due or (every is not None and session.last_step % every == 0)
        if is_due and session.last_step > 0 and session.last_step != self._saved_step:
            save(
                self.run / "checkpoints",
                step=session.last_step,
                state=session.state(),
                provenance=provenance(self._identity, self._parts, self.run),
            )
            self._saved_step = session.last_step
            if self._retention is not None and place().rank == 0:
                retain(self.run / "checkpoints", self._retention, newest_step=session.last_step)
        session.is_save_due = False

    def micros(self, session: SessionView) -> Iterator[Micro]:
        """The loader's own, from the cursor on."""
        return session.parts.source.epoch(session.epoch_number, session.at, self.left_out)

    def step(self, session: SessionView) -> AbstractContextManager[StepRecorder]:
        """The next step by number."""
        return self.recorder.step(session.last_step + 1)

    def finish(self, session: SessionView) -> None:
        """The loop is through: save what is still due."""
        self.between(session)

    def close(self) -> None:
        """Close the segment."""
        if hasattr(self, "recorder"):
            self.recorder.close()

    def roll_back(self, generation: Any) -> None:
        """Begin again from `generation`, without what the guard leaves out; the run takes note."""
        assert self._guard is not None
        self.close()
        self._is_back = True
        self.generation = Path(generation)
        self.left_out = frozenset({*self.left_out, *map(str, self._guard.skip_ids)})
        if not dist.is_initialized() or dist.get_rank() == 0:
            durable.write(self.run / LEFT_OUT, json.dumps(sorted(self.left_out)).encode())

    def _known_good(self, before: int) -> str | None:
        generation = newest_known_good(self.run / "checkpoints", before)
        if generation is None:
            return None
        return str(generation)


def read_left_out(run: Path) -> frozenset[str]:
    """Names of the micro-batches that rollbacks left out of the run's data."""
    path = run / LEFT_OUT
    if path.exists():
        return frozenset(json.loads(path.read_text(encoding="utf-8")))
    return frozenset()


def identity_of(run: Path, code: Path, parts: Parts) -> Identity:
    """Identity of this process."""
    index = run / "data" / "index.json"
    return identify(
        run=run,
        code=code,
        config=run / "config.json",
        world_size=dist.get_world_size() if dist.is_initialized() else 1,
        device=next(parts.model.parameters()).device.type,
        precision=parts.precision,
        kernel=parts.kernel,
        hparams=parts.hparams,
        dataset=index if index.exists() else None,
    )


def provenance(identity: Identity, parts: Parts, run: Path) -> Provenance:
    """What produced a generation."""
    index = run / "data" / "index.json"
    schedule: dict[str, Any] = {}
    if parts.schedule:
        schedule = {**parts.schedule, "counts": "updates"}  # it steps with the optimizer
    return Provenance(
        hparams=parts.hparams,
        schedule=schedule,
        code_path=identity.code_path,
        code_digest=identity.code_digest,
        config_digest=identity.config_digest,
        index_digest=of_file(index) if index.exists() else "",
    )
