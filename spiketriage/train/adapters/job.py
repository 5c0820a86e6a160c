"""A job: the user's loop with everything around it, run as production or replayed by the desk.

It never knows a framework: adapters give it a function that builds all objects and runs the loop in
a session.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from spiketriage.train.adapters import deploy
from spiketriage.train.adapters.production import Production
from spiketriage.train.adapters.replay import Replay
from spiketriage.train.adapters.session import RolledBack, Session
from spiketriage.train.adapters.state import Parts
from spiketriage.train.generations.retention import Retention
from spiketriage.train.guarding.guard import Policy, exit_with_code
from spiketriage.train.harness import Context
from spiketriage.train.recording.recorder import BUDGET_SHARE

Loop = Callable[[Session], None]


class Job:
    """`user` is the user's function, by which the code folder is found; `loop_in(run)` runs all.

    Bind an instance to a name in the module of `user` and its `harness` to another, which the desk
    calls:

        job = …(…)
        factory = job.harness

    `save_every` saves a generation every so many steps (None: when the framework saves),
    `retention` says which may go after a save (None: all stay), `policy` is the guard's (None: no
    guard).
    """

    def __init__(
        self,
        user: Callable[..., object],
        loop_in: Callable[[Path], Loop],
        *,
        policy: Policy | None = None,
        save_every: int | None = None,
        retention: Retention | None = None,
        budget_share: float | None = BUDGET_SHARE,
        harness: str = "factory",
    ) -> None:
        self._user, self._loop_in, self._policy = user, loop_in, policy
        self._save_every, self._retention = save_every, retention
        self._budget_share, self._harness = budget_share, harness

    def train(self, run: Path) -> None:
        """Train in folder `run`, from its newest generation on; a rollback begins again inside.

        Raises:
            SystemExit: the guard stopped the job: exit code 10, as torchrun reports it for each
            rank.
        """
        run = run.resolve()
        run.mkdir(parents=True, exist_ok=True)
        with exit_with_code():
            feed = Production(
                run,
                deploy=lambda parts: self._deploy(run, parts),
                save_every=self._save_every,
                retention=self._retention,
                budget_share=self._budget_share,
            )
            try:
                while not self._live(feed):
                    pass
            finally:
                feed.close()

    def harness(self, context: Context) -> Replay:
        """The harness of one rank, for the desk."""
        return Replay(context, self._loop_in(context.run), self._policy)

    def _live(self, feed: Production) -> bool:
        """One life of the loop; returns whether its end was the end of the job."""
        session = Session(feed, self._policy)
        try:
            with session:
                self._loop_in(feed.run)(session)
                feed.finish(session)
        except RolledBack as back:
            feed.roll_back(back.decision.generation)
            return False
        return True

    def _deploy(self, run: Path, parts: Parts) -> Path:
        """Put code, config and settings into the run; returns the code's folder there."""
        path = Path(inspect.getfile(self._user)).resolve()
        code = path.parent
        if not dist.is_initialized() or dist.get_rank() == 0:
            code = deploy.deploy_code(run, code)
            deploy.write_config(run, parts.config)
            num_processes = 1
            if dist.is_initialized():
                num_processes = dist.get_world_size()
            # The module as the desk will import it: its package's folder, then its file.
            harness = f"{path.parent.name}.{path.stem}:{self._harness}"
            deploy.write_settings(run, harness=harness, code=code, num_processes=num_processes)
        if dist.is_initialized():
            broadcast = [code]
            dist.broadcast_object_list(broadcast)
            code = broadcast[0]
        return code


class LoopJob(Job):
    """A job whose user function is `train(loop)`; `LOOP(session, run)` makes its loop."""

    LOOP: Callable[[Session, Path], Any]

    def __init__(
        self,
        train: Callable[[Any], None],
        *,
        save_every: int,
        policy: Policy | None = None,
        retention: Retention | None = None,
        budget_share: float | None = BUDGET_SHARE,
    ) -> None:
        make = type(self).LOOP

        def loop_in(run: Path) -> Loop:
            return lambda session: train(make(session, run))

        super().__init__(
            train,
            loop_in,
            policy=policy,
            save_every=save_every,
            retention=retention,
            budget_share=budget_share,
        )
