"""Control: one batch is drawn from a rare source.

Every document is clean, the loss may jump, nothing is wrong.

The index names the source truly, and the documents look like that source's other documents.
"""

from __future__ import annotations

from spiketriage.practice.rehearsal.corpus import RARE_SOURCE
from spiketriage.practice.rehearsal.staging import Staging

NAME = "rare-but-clean-batch"
CAUSE = None
ABOUT = "control: a batch of a rare but clean source"


def plant(stage: Staging) -> None:
    """Fill one step's batch on every rank from the rare source."""
    for number in stage.documents_at(stage.fault_step):
        length = len(stage.documents[number].data)
        stage.replace(number, stage.corpus.fill(RARE_SOURCE, length), RARE_SOURCE)
