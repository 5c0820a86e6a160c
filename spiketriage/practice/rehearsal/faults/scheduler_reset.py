"""The code deployed at the restart forgets the scheduler's counter: the learning rate starts over.

The plant is a change of the deployed loader; the generation on disk is intact.
"""

from __future__ import annotations

from spiketriage.practice.rehearsal.staging import Staging

NAME = "scheduler-reset"
CAUSE = "scheduler-reset"
ABOUT = "the restart loses the scheduler's counter"


def plant(stage: Staging) -> None:
    """Start the counter at a place that the seed chooses, from warm-up to the peak."""
    counter = stage.chooser.choice((0, stage.chooser.randint(5, 30), stage.config.warmup_steps))
    stage.edit_code(
        "restore.py",
        "    scheduler = dict(state.scheduler)\n",
        f'    scheduler = {{**state.scheduler, "last_step": {counter}}}\n',
    )
