"""Causes in devices, memory, communication, code and telemetry.

This table is data: it never reads evidence and never computes.
"""

from __future__ import annotations

from spiketriage.diagnosis.cause import ANY, BATCH_CELLS_OPEN, ONCE, RANKS_APART, Cause

# Stages whose result an environment can change. State is none of them: it was loaded.
COMPUTED_DIFFERENTLY = (
    "differs@batch",
    "differs@activations",
    "differs@loss",
    "differs@local_gradient",
    "differs@reduced_gradient",
    "differs@optimizer",
)

# A later window after something that happened once: it repeats, or its replay begins on other
# weights, which is what ranks that have parted look like once one of them was saved for all.
REPEATS_LATER = ("agrees", "differs@params_before")

# Whoever loads the parameters of another generation may bring the rest of that one along.
RESTORED_ALONG = {
    "restored-optimizer": ANY,
    "restored-buffers": ANY,
    "restored-scheduler": ANY,
    "restored-scaler": ANY,
    "restored-guard": ANY,
    "restored-rng": ANY,
    "restored-cursor": ANY,
}

SYSTEMS: tuple[Cause, ...] = (
    # One tensor of one rank changed between two steps, and a replay does not repeat it.
    Cause(
        name="weight-bit-flip",
        cause_class="systems",
        summary="a parameter tensor of one rank changed between two steps, outside any step; "
        "replays do not repeat it",
        predicts={
            **BATCH_CELLS_OPEN,
            **ONCE,
            **RANKS_APART,
            "continuity": ("differs@one tensor",),
            "ranks-params-before": ("differs",),
            "ranks-reduced-gradient": ANY,
            "replay": ("differs@params_before#1",),
            "finiteness": ANY,
            "composition": ANY,
        },
        decides=("continuity", "ranks-params-before", "replay", "replay-determinism"),
        decides_on_spike=("replay-spike",),
        located_by=("continuity",),
        repair="drain the host of the named rank and test its memory; roll back to the known-good "
        "generation",
    ),
    # One rank kept its own gradient instead of the reduced one, and left the others for good.
    Cause(
        name="skipped-all-reduce",
        cause_class="systems",
        summary="one rank went on with its own gradient instead of the reduced one",
        predicts={
            **BATCH_CELLS_OPEN,
            **ONCE,
            **RANKS_APART,
            "reduction": ("differs",),
            "ranks-reduced-gradient": ("differs",),
            "replay": ("differs@reduced_gradient#1",),
            "composition": ANY,
        },
        decides=("reduction", "ranks-reduced-gradient", "replay", "replay-determinism"),
        decides_on_spike=("replay-spike",),
        located_by=("reduction",),
        repair="roll back to the known-good generation; look at the named rank's collective "
        "library and network",
    ),
    # Several tensors of one rank changed between two steps: more than a flipped bit.
    Cause(
        name="weights-overwritten",
        cause_class="systems",
        summary="several parameter tensors of one rank changed between two steps, outside any step",
        predicts={
            **BATCH_CELLS_OPEN,
            **RANKS_APART,
            **ONCE,
            "continuity": ("differs@several tensors",),
            "ranks-params-before": ANY,
            "ranks-reduced-gradient": ANY,
            "replay": ("differs@params_before",),
            "finiteness": ANY,
            "composition": ANY,
        },
        decides=("continuity", "replay", "replay-determinism"),
        decides_on_spike=("replay-spike",),
        located_by=("continuity",),
        repair="look for code that writes weights between steps; test the rank's memory; roll "
        "back to known good",
    ),
    # The data loader got other bytes than the disk holds, once.
    Cause(
        name="wrong-read",
        cause_class="systems",
        summary="a read returned bytes that neither the disk nor the index holds; replays read "
        "the right ones",
        predicts={
            **BATCH_CELLS_OPEN,
            **ONCE,
            "consumed-content": ("differs",),
            "consumed-at-spike": ANY,
            "replay": ("differs@content",),
            "composition": ANY,
        },
        decides=("consumed-content", "shard-digests", "replay", "replay-determinism"),
        decides_on_spike=("replay-spike",),
        located_by=("consumed-content",),
        repair="roll back to the known-good generation; check digests on read; look at the named "
        "rank's storage path",
    ),
    # One rank computed something else once, from the same state and the same batch.
    Cause(
        name="transient-compute-error",
        cause_class="systems",
        summary="one rank computed another result once, from the same state and batch; replays "
        "agree with each other",
        predicts={
            **BATCH_CELLS_OPEN,
            **RANKS_APART,
            **ONCE,
            "ranks-reduced-gradient": ANY,
            "finiteness": ANY,
            "composition": ANY,
            "replay": ("differs@activations#1", "differs@loss#1", "differs@local_gradient#1"),
            "later-window": REPEATS_LATER,
        },
        decides=("replay", "replay-determinism", "later-window", "continuity"),
        decides_on_spike=("replay-spike",),
        located_by=("replay",),
        repair="drain the host of the named rank and screen it; roll back to the known-good "
        "generation",
    ),
    # The optimizer's state or its update was another one on one rank, once. Whether memory or
    # arithmetic failed cannot be told.
    Cause(
        name="optimizer-corruption",
        cause_class="systems",
        summary="optimizer state or update of one rank was another one, once: a memory fault or a "
        "wrong computation",
        predicts={
            **BATCH_CELLS_OPEN,
            **RANKS_APART,
            **ONCE,
            "composition": ANY,
            "replay": ("differs@optimizer#1", "differs@params_after#1"),
            "later-window": REPEATS_LATER,
        },
        decides=("replay", "replay-determinism", "later-window", "continuity"),
        decides_on_spike=("replay-spike",),
        located_by=("replay",),
        repair="drain the host of the named rank and screen it; roll back to the known-good "
        "generation",
    ),
    # Production and its replays compute differently again and again: another kernel, library,
    # device or setting.
    Cause(
        name="environment-differs",
        cause_class="systems",
        summary="production computes differently from its replays at every step looked at: their "
        "environments differ",
        predicts={
            **BATCH_CELLS_OPEN,
            **RANKS_APART,
            "ranks-params-before": ANY,
            "ranks-reduced-gradient": ANY,
            "finiteness": ANY,
            "composition": ANY,
            "replay-determinism": ("agrees",),
            "replay": COMPUTED_DIFFERENTLY,
            "later-window": COMPUTED_DIFFERENTLY,
            "deterministic-mode": ANY,
            "replay-spike": ("agrees",),
        },
        decides=("replay", "replay-determinism", "later-window"),
        decides_on_spike=("replay-spike",),
        located_by=("replay",),
        repair="compare device, libraries, flags and thread counts of production with those of "
        "the replay",
    ),
    # The code that was deployed at a restart computes something else, and a spike goes with it,
    # where no finer cause is known.
    Cause(
        name="code-change",
        cause_class="systems",
        summary="the code deployed at the restart computes something else than the code before it",
        predicts={
            **BATCH_CELLS_OPEN,
            "clean-batch/older-state": ANY,
            "reference-code": ("differs",),
            "code-heals": ("agrees",),
            "composition": ANY,
        },
        decides=("reference-code", "replay"),
        decides_on_spike=(
            "code-heals",
            "reference-kernel",
            "reference-precision",
            "content-profile",
        ),
        located_by=("reference-code",),
        repair="read the change; unless it was meant, roll code and state back to before the "
        "restart; replay",
    ),
    # A restart loaded parameters that are not those of its generation, once. A later load of the
    # same files is right.
    Cause(
        name="wrong-parameters-restored",
        cause_class="systems",
        summary="after the restart a rank held other parameters than its generation; a replayed "
        "load is right",
        predicts={
            **BATCH_CELLS_OPEN,
            **RANKS_APART,
            **ONCE,
            "restored-params": ("differs",),
            **RESTORED_ALONG,
            "ranks-params-before": ANY,
            "ranks-reduced-gradient": ANY,
            "replay": ("differs@restored",),
            "composition": ANY,
        },
        decides=("restored-params", "replay", "replay-determinism"),
        decides_on_spike=("replay-spike",),
        located_by=("restored-params",),
        repair="roll back to the generation of the restart and load its own files; verify digests "
        "after every load",
    ),
    # The deployed loader does not restore the parameters. Every load through it is wrong in the
    # same way.
    Cause(
        name="parameters-not-restored",
        cause_class="systems",
        summary="the deployed loader leaves other parameters than the generation holds, every time",
        predicts={
            **BATCH_CELLS_OPEN,
            **RANKS_APART,
            "restored-params": ("differs",),
            **RESTORED_ALONG,
            "ranks-params-before": ANY,
            "ranks-reduced-gradient": ANY,
            "reference-loader": ("differs@restored",),
            "loader-heals": ("agrees",),
            "reference-code": ANY,
            "composition": ANY,
        },
        decides=("restored-params", "replay", "reference-loader"),
        decides_on_spike=("loader-heals",),
        located_by=("restored-params",),
        repair="fix the loader, roll back to the generation of the restart",
    ),
    # A metric is nonfinite although every tensor of its step was finite. The telemetry is wrong,
    # not the run.
    Cause(
        name="metric-artefact",
        cause_class="systems",
        summary="the metric is wrong; the tensors of the step were finite and replay bit for bit",
        predicts={"metric-consistency": ("differs",), "composition": ANY, "skip-batch": ANY},
        decides=("metric-consistency", "finiteness", "replay"),
        decides_on_spike=("suspect-batch/suspect-state",),
        located_by=("metric-consistency",),
        repair="none for the run: repair the logging path",
        verdict="telemetry-artefact",
    ),
)
