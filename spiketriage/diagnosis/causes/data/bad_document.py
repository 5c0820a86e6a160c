"""Documents that are intact and pathological.

The index describes them truly, and still they are garbage.

This file is data; it never reads a document.
"""

from __future__ import annotations

from spiketriage.diagnosis.cause import ANY, BATCH_FOLLOWS, Cause

CAUSE = Cause(
    name="bad-document",
    cause_class="data",
    summary="the suspect batch holds intact but pathological documents",
    predicts={**BATCH_FOLLOWS, "content-profile": ("differs",), "composition": ANY},
    decides=("content-profile", "shard-digests", "consumed-content", "replay"),
    decides_on_spike=(
        "skip-batch",
        "suspect-batch/older-state",
        "reference-kernel",
        "reference-precision",
    ),
    located_by=("content-profile",),
    needs_spike=True,
    repair="remove the named documents from the data set, roll back to the known-good generation, "
    "skip the batch",
    control="the same continuation with the documents must spike again",
)
