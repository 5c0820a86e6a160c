"""Intact but pathological documents: the index describes them truly, and still they are garbage.

The plant goes in before the index is written, as bad data upstream does.
"""

from __future__ import annotations

from spiketriage.practice.rehearsal.staging import Staging

NAME = "bad-document"
CAUSE = "bad-document"
ABOUT = "an intact but pathological batch: noise, one repeated byte, or a wrong tokenizer's output"


def plant(stage: Staging) -> None:
    """Replace the documents of one rank's batch by one kind of garbage."""
    kind = stage.chooser.choice(("noise", "repeat", "permuted"))
    table = list(range(256))
    stage.chooser.shuffle(table)
    repeated = stage.chooser.randrange(128, 256)
    for number in stage.documents_at(stage.fault_step, stage.rank):
        data = stage.documents[number].data
        if kind == "noise":
            data = bytes(stage.chooser.randrange(256) for _ in data)
        elif kind == "repeat":
            data = bytes([repeated]) * len(data)
        else:
            data = data.translate(bytes(table))
        stage.replace(number, data)
