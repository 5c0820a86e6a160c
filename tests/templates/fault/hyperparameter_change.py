"""The restart trains on with a learning rate that the generation was not written with.

The plant is a change of the deployed loader; the generation on disk is intact.
"""

from __future__ import annotations

from spiketriage.practice.rehearsal.staging import Staging

NAME = "hyperparameter-change"
CAUSE = "hyperparameter-change"
ABOUT = "the restart trains on with another learning rate"


def plant(stage: Staging) -> None:
    """Make the scheduler's counter run ahead, by an amount that the seed chooses."""
    ahead = stage.chooser.randint(20, 60)
    stage.edit_code(
        "restore.py",
        "    scheduler = dict(state.scheduler)\n",
        f'    scheduler = {{**state.scheduler, "last_step": {ahead}}}\n',
    )
