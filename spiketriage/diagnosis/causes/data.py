"""Causes in the data that a step consumed.

This table is data: it never reads evidence and never computes.
"""

from __future__ import annotations

from spiketriage.diagnosis.cause import ANY, BATCH_CELLS_OPEN, BATCH_FOLLOWS, Cause

DATA: tuple[Cause, ...] = (
    # Bytes of a shard changed on disk after the index was written, and training consumed them.
    Cause(
        name="shard-bitrot",
        cause_class="data",
        summary="bytes of a data shard no longer match the index, and the run consumed them",
        predicts={
            "shard-digests": ("differs",),
            "consumed-content": ("differs",),
            "consumed-at-spike": ("differs",),
            "content-profile": ANY,
            "composition": ANY,
            "suspect-batch/suspect-state": ANY,
            "suspect-batch/older-state": ANY,
        },
        predicts_on_spike={"content-profile": ("differs",)},
        decides=("shard-digests", "consumed-content", "replay"),
        decides_on_spike=(
            "consumed-at-spike",
            "content-profile",
            "skip-batch",
            "suspect-batch/older-state",
            "reference-kernel",
            "reference-precision",
        ),
        located_by=("consumed-content", "shard-digests"),
        repair="restore every shard that `hash` names from a copy that matches the index; roll "
        "back to known good; replay",
    ),
    # Documents that are intact and pathological. The index describes them truly, and still they are
    # garbage.
    Cause(
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
        repair="remove the named documents from the data set, roll back to the known-good "
        "generation, skip the batch",
    ),
    # A batch of a rare source whose documents are like that source's other documents. Nothing is
    # wrong.
    Cause(
        name="rare-but-clean-batch",
        cause_class="data",
        summary="the suspect batch comes from a rare source and is clean; the loss is what such "
        "text costs",
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
        verdict="expected-behaviour",
    ),
    # The index is not the one that the generations were trained with. It accuses nobody until it is
    # restored.
    Cause(
        name="index-changed",
        cause_class="data",
        summary="the data index differs from the one that the generations recorded",
        predicts={
            **BATCH_CELLS_OPEN,
            "index-identity": ("differs",),
            "shard-digests": ANY,
            "consumed-content": ANY,
            "consumed-at-spike": ANY,
            "content-profile": ANY,
            "composition": ANY,
            "ids": ANY,
            "replay": ("agrees", "differs@ids", "differs@content"),
        },
        decides=("index-identity", "replay"),
        by_hand=("index-restored",),
        located_by=("index-identity",),
        repair="restore the index whose digest the manifests hold, then triage again",
    ),
)
