"""A batch of a rare source whose documents are like that source's other documents.

Nothing is wrong.

This file is data; it never reads a document.
"""

from __future__ import annotations

from spiketriage.diagnosis.cause import BATCH_FOLLOWS, Cause

CAUSE = Cause(
    name="rare-but-clean-batch",
    cause_class="data",
    summary="the suspect batch comes from a rare source and is clean; the loss is what such text "
    "costs",
    predicts={**BATCH_FOLLOWS, "composition": ("differs",)},
    decides=("composition", "content-profile", "shard-digests", "consumed-content", "replay"),
    decides_on_spike=(
        "skip-batch",
        "suspect-batch/older-state",
        "reference-kernel",
        "reference-precision",
        "reference-code",
    ),
    located_by=("composition",),
    needs_spike=True,
    repair="none: let the run go on; spread the rare source more evenly if the jump matters",
    control="none",
    verdict="expected-behaviour",
)
