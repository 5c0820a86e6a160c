"""Sample dossiers: a realistic spike, an audit without a spike, and an almost empty incident.

They stand in for what an incident returns; no test changes them in place.
"""

from __future__ import annotations

import hashlib
import math
import random

from spiketriage.nouns.incident import (
    Anchors,
    Artifact,
    CauseView,
    Dossier,
    Finding,
    JournalRow,
    StepPoint,
    TrialRow,
    Verdict,
    Where,
)

HOSTILE = (
    '<script>alert("x")</script> | a `tick` ``two`` [link](http://evil.example/) '
    "\u202eesrever\x1b[31m & <img src=x>"
)


def points(first: int, last: int, *, attempt: int, seed: int = 0) -> list[StepPoint]:
    """Calm stretch of training: loss falls from 5.5, noise of a few percent."""
    dice = random.Random(seed)
    return [
        StepPoint(
            attempt=attempt,
            step=step,
            loss=2.1 + 3.4 * math.exp(-step / 60) + dice.gauss(0, 0.035),
            grad_norm=0.9 * math.exp(dice.gauss(0, 0.12)) + 2.5 * math.exp(-step / 25),
            update_norm=0.02 + dice.gauss(0, 0.0008),
            lr=3e-4 * min(1.0, step / 20),
            alarm="",
        )
        for step in range(first, last + 1)
    ]


def bent(point: StepPoint, *, loss: float, grad_norm: float, alarm: str) -> StepPoint:
    return StepPoint(
        attempt=point.attempt,
        step=point.step,
        loss=loss,
        grad_norm=grad_norm,
        update_norm=point.update_norm,
        lr=point.lr,
        alarm=alarm,
    )


def journal(*commands: str) -> tuple[JournalRow, ...]:
    """Rows chained by a digest of their own text; good enough to be told apart."""
    rows, previous = [], "0" * 64
    for number, argv in enumerate(commands, start=1):
        digest = hashlib.sha256(f"{previous}{number}{argv}".encode()).hexdigest()
        rows.append(
            JournalRow(
                number=number,
                at=f"2026-11-29T03:{11 + number:02d}:07Z",
                who="somebody",
                host="node-17",
                argv=argv,
                version="0.1.0",
                outcome="done",
                exit_code=0,
                duration_s=3.25 * number,
                previous=previous,
                digest=digest,
            )
        )
        previous = digest
    return tuple(rows)


def artifact(
    path: str,
    kind: str,
    size: int,
    *,
    kept: str,
    digest: str = "",
    expected: str = "",
    note: str = "",
):
    measured = digest or hashlib.md5(path.encode(), usedforsecurity=False).hexdigest()
    return Artifact(
        path=path,
        kind=kind,
        size_bytes=size,
        mtime_ns=1_795_000_000_000_000_000,
        digest="" if kept == "missing" else measured,
        expected=expected,
        kept=kept,
        note=note,
    )


def trial(
    key: str,
    purpose: str,
    *,
    kind: str = "replay",
    summary: str,
    executed: int,
    repeat: int = 0,
    **factors: str,
):
    condition = {
        "state": "step-000180@180",
        **{"batch": "recorded", "code": "deployed", "loader": "deployed", "placement": "same"},
        **{"precision": "deployed", "kernel": "deployed"},
        **factors,
    }
    return TrialRow(
        key=key,
        kind=kind,
        purpose=purpose,
        factors=condition,
        first_step=181,
        last_step=203,
        repeat=repeat,
        state="done",
        num_steps_executed=executed,
        wall_s=11.38,
        summary=summary,
    )


def spike() -> Dossier:
    """Bit rot in a shard: the loss spikes at 203 and is NaN at 205 and 206; one restart at 121."""
    steps = points(1, 130, attempt=0) + points(121, 259, attempt=1, seed=1)
    shape = {
        203: (9.417, 61.2, "loss 9.417, band 1.95–2.27"),
        204: (4.03, 8.8, "gradient norm 8.8"),
    }
    lost = {
        205: (math.nan, math.inf, "loss is not finite"),
        206: (math.nan, math.nan, "loss is not finite"),
    }
    steps = [
        bent(p, loss=v[0], grad_norm=v[1], alarm=v[2])
        if (v := {**shape, **lost}.get(p.step)) and p.attempt
        else p
        for p in steps
    ]
    return Dossier(
        incident="2026-11-29T0312Z-step203",
        facts={
            "run": "/runs/lm-small-07",
            "run_id": "lm-small-07",
            "frozen_by": "node-17",
            "num_attempts": "2",
            "num_ranks": "2",
            "trigger": "Loss 9.417 left the band 1.95–2.27 at step 203.",
        },
        anchors=Anchors(
            onset=201,
            suspect=203,
            reason="Loss 9.417 left the band 1.95–2.27 at step 203. The gradient norm followed.",
            known_good="step-000180",
            older_good="step-000160",
            refused={
                "step-000240": "newer than onset (step 201)",
                "step-000220": "newer than onset (step 201)",
                "step-000200": "tensors/__1_0.distcp: digest differs from MANIFEST.json",
            },
        ),
        artifacts=(
            artifact("telemetry/rank-00000.attempt-001.seg", "telemetry", 1_843_200, kept="copied"),
            artifact(
                "telemetry/rank-00001.attempt-001.seg",
                "telemetry",
                1_843_712,
                kept="copied",
                note="torn tail, 37 bytes",
            ),
            artifact(
                "checkpoints/step-000180/tensors/__0_0.distcp",
                "generation",
                4_218_880,
                kept="pinned",
            ),
            artifact(
                "data/shard-0003.bin",
                "data",
                524_288,
                kept="pinned",
                expected="9b74c9897bac770ffc029102a200c5de",
            ),
            artifact(
                "logs/rank-1.log", "log", 0, kept="missing", note=f"collector timed out: {HOSTILE}"
            ),
            artifact("config.json", "config", 812, kept="copied"),
        ),
        findings=(
            Finding(
                name="ranks-agree",
                outcome="agrees",
                summary="every digest of the state is equal on 2 ranks",
            ),
            Finding(
                name="data-at-rest",
                outcome="differs",
                summary="one document's bytes are not what the index says",
                where=Where(
                    path="data/shard-0003.bin", key="doc-000417", step=203, stage="content", rank=1
                ),
                expected="9b74c9897bac770f",
                seen="1c8b4b9e0f7d2a66",
                magnitude=1.0,
            ),
            Finding(
                name="finite-by-stage",
                outcome="nonfinite",
                summary="first nonfinite link",
                where=Where(step=205, stage="activations", key="blocks.3.mlp#0", rank=1),
                seen=HOSTILE,
            ),
            Finding(
                name="code-identity",
                outcome="differs",
                summary="code changed at the restart",
                judged=False,
            ),
            Finding(
                name="hardware-events", outcome="not testable", summary="no event log is configured"
            ),
            Finding(
                name="replay",
                outcome="agrees",
                source="experiment",
                summary="bitwise identical over 23 steps, 3 of 3",
                trials=("a3f1c09be2d44871",),
            ),
            Finding(
                name="clean-batch",
                outcome="agrees",
                source="experiment",
                summary="no spike with the batch of step 197",
                magnitude=0.0213456789,
                trials=("77b0de1290aa4c3e",),
            ),
        ),
        trials=(
            trial(
                "a3f1c09be2d44871",
                "reproduce the incident",
                summary="spike at 203, bitwise",
                executed=23,
            ),
            trial(
                "a3f1c09be2d44872",
                "reproduce the incident",
                summary="bitwise",
                executed=23,
                repeat=1,
            ),
            trial(
                "77b0de1290aa4c3e",
                "clean batch",
                kind="probe",
                summary="loss 2.11",
                executed=1,
                batch="step 197",
            ),
            trial(
                "c41d7f65b8e90a12",
                "verified loader",
                summary="loss 2.14",
                executed=23,
                loader="verified",
            ),
        ),
        steps=tuple(steps),
        verdict=Verdict(
            kind="established",
            cause="shard-bitrot",
            cause_class="data",
            candidates=(),
            explanation="The bytes of doc-000417 in shard 3 differ from the index, "
            "and the verified loader removes the spike. A clean batch on the same state is normal.",
            where=Where(
                step=203, stage="content", key="doc-000417", rank=1, path="data/shard-0003.bin"
            ),
            causes=(
                CauseView(
                    name="shard-bitrot",
                    cause_class="data",
                    status="decided",
                    supporting=("data-at-rest differs", "verified loader removes the spike"),
                    contradicting=(),
                    untested=(),
                ),
                CauseView(
                    name="bad-document",
                    cause_class="data",
                    status="contradicted",
                    supporting=("clean batch is normal",),
                    contradicting=("data-at-rest differs",),
                    untested=(),
                ),
                CauseView(
                    name="fp16-overflow",
                    cause_class="numerics",
                    status="open",
                    supporting=(),
                    contradicting=(),
                    untested=("fp32 reference",),
                ),
            ),
            not_tested=(
                "fp32 reference: no step was executed in fp32",
                "other placement: one host only",
            ),
            repair="Restore data/shard-0003.bin from its source, verify its digest, resume from "
            "step-000180.",
            next_experiment=None,
            steps_executed=70,
        ),
        journal=journal(
            "spiketriage freeze /runs/lm-small-07",
            "spiketriage hash /runs/lm-small-07",
            "spiketriage status",
            "spiketriage check /runs/lm-small-07",
            "spiketriage replay /runs/lm-small-07",
            f"spiketriage branch --factor loader=verified '{HOSTILE}'",
            "spiketriage bisect /runs/lm-small-07",
        ),
    )


def audit() -> Dossier:
    """No spike at all: checks were run, nothing was found, no step was executed."""
    return Dossier(
        incident="2026-11-29T0400Z-audit",
        facts={"run": "/runs/quiet", "run_id": "quiet"},
        anchors=Anchors(
            onset=None,
            suspect=None,
            reason="No alarm on 260 steps",
            known_good="step-000240",
            older_good="step-000220",
            refused={},
        ),
        artifacts=(
            artifact("telemetry/rank-00000.attempt-000.seg", "telemetry", 900_000, kept="copied"),
        ),
        findings=(
            Finding(
                name="ranks-agree", outcome="agrees", summary="2 ranks, 260 steps, every stage"
            ),
        ),
        trials=(),
        steps=tuple(points(1, 260, attempt=0)),
        verdict=Verdict(
            kind="nothing-found",
            cause=None,
            cause_class=None,
            candidates=(),
            explanation="Every check agrees and nothing raised an alarm.",
            where=Where(),
            causes=(),
            not_tested=("no step was executed",),
            repair="",
            next_experiment=None,
            steps_executed=0,
        ),
        journal=journal("spiketriage freeze /runs/quiet", "spiketriage check --audit /runs/quiet"),
    )


def empty() -> Dossier:
    """Incident folder that was made and nothing more."""
    return Dossier(
        incident="2026-11-29T0500Z-audit",
        facts={},
        anchors=None,
        artifacts=(),
        findings=(),
        trials=(),
        steps=(),
        verdict=None,
        journal=(),
    )
