"""Data at rest rots after the index was written: documents of one step no longer match it.

The plant touches the shard files only; index, code and processes stay as they are.
"""

from __future__ import annotations

from spiketriage.practice.rehearsal.staging import Staging

NAME = "shard-bitrot"
CAUSE = "shard-bitrot"
ABOUT = "documents on disk rot after the index was written"


def plant(stage: Staging) -> None:
    """Overwrite the documents of one rank's batch with what a failing block returns."""
    for number in stage.documents_at(stage.fault_step, stage.rank):
        length = len(stage.documents[number].data)
        stage.rot(number, bytes(stage.chooser.randrange(256) for _ in range(length)))
