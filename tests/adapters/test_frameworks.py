"""A real run of each framework.

Recorded, stopped by its guard, resumed, and replayed bit for bit by the desk.

11 micro-batches an epoch, 2 a step: the sixth step of an epoch has one. The rotten row comes in
steps 6, 10 and 14.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from adapted import CHILD, Adapted, chain, child, rotten_steps, rows_with_rot, script

from spiketriage.wire.chain import STAGES

pytestmark = pytest.mark.slow

ROWS, ROTTEN, LENGTH = 85, 12, 16
SKIPPED = [6, 10, 14]
FIRST_AGAIN = 9  # the first step that the second attempt trains
OF_THE_UPDATE = {"optimizer", "params_after"}


@pytest.fixture(scope="module", params=["plain", "lightning", "accelerate"])
def adapted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    """A run that ended twice by the guard's word, the second time after it had gone on from step 8."""
    if request.param != "plain":
        pytest.importorskip(request.param)
    run = rows_with_rot(
        tmp_path_factory.mktemp(request.param) / "run", num_rows=ROWS, rotten=ROTTEN
    )
    driven_of(run).mkdir()
    done = child(str(CHILD), str(script(request.param)), str(run.folder), str(driven_of(run)))
    assert done.returncode == 0, done.stderr
    assert "[10, 10]" in done.stdout.splitlines()
    assert "step 14: nonfinite, seen by rank 0, number 3 without progress: stop" in done.stderr
    return run


def driven_of(adapted: Adapted) -> Path:
    """Chains that the harness wrote when it was driven from step 5 to 9."""
    return adapted.folder.with_name("driven")


def test_every_step_is_on_record_and_the_rotten_ones_were_left_out(adapted: Adapted) -> None:
    first = {one.step: one for one in adapted.segments()[0].steps}
    assert list(first) == list(range(1, 15))
    assert rotten_steps(first, ROTTEN) == SKIPPED
    assert [step for step, one in first.items() if one.nonfinite] == SKIPPED
    assert [step for step, one in first.items() if one.metrics["guard/skipped"]] == SKIPPED
    assert {len(one.ids["micros"]) for step, one in first.items() if step % 6} == {2}
    assert len(first[6].ids["micros"]) == len(first[12].ids["micros"]) == 1
    for step, one in first.items():
        missing = set(STAGES) - {link.stage for link in one.digests} - {"restored"}
        assert missing == ({"optimizer"} if step in SKIPPED else set()), step
        assert one.metrics["scheduler/step"] == step - 1 - sum(other < step for other in SKIPPED)
        assert one.metrics["lr"] == pytest.approx(
            3e-3 * min(1.0, (one.metrics["scheduler/step"] + 1) / 10)
        )


def test_a_step_left_out_leaves_params_moments_and_scheduler_alone_and_counts_everything(
    adapted: Adapted,
) -> None:
    taken, before, after = (adapted.manifest(step) for step in (4, 5, 6))

    def unmoved(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
        fields = one["fields"]["rank-0"]
        return {name for name in fields if fields[name] == other["fields"]["rank-0"][name]}

    assert {"params", "optimizer"} <= unmoved(before, after)
    assert not {"params", "optimizer", "scheduler", "rng", "cursor", "guard"} & unmoved(
        taken, before
    )
    assert not {"rng", "cursor", "guard"} & unmoved(before, after)
    assert rates(before) == rates(after) != rates(taken)
    assert after["num_tokens"] - before["num_tokens"] == (ROWS - 80) * LENGTH


def rates(manifest: dict[str, Any]) -> Any:
    """The learning rate and the state of the scheduler, wherever the adapter keeps it."""
    held = manifest["scheduler"]["scheduler"]
    return held.get("schedulers", held), [group["lr"] for group in manifest["scheduler"]["groups"]]


def test_a_resumed_run_repeats_the_one_that_was_not_interrupted(adapted: Adapted) -> None:
    first, again = ({one.step: one for one in segment.steps} for segment in adapted.segments())
    assert list(again) == list(range(FIRST_AGAIN, 15))
    for step, one in again.items():
        assert one.digests == first[step].digests, step
        assert (one.rng, one.ids, one.content) == (
            first[step].rng,
            first[step].ids,
            first[step].content,
        )


def test_the_harness_loads_what_was_saved_by_either_loader_and_repeats_production(
    adapted: Adapted,
) -> None:
    driven = driven_of(adapted)
    told = json.loads((driven / "told.json").read_text())
    assert told["loads"] == [[5, adapted.manifest(5)["fields"]["rank-0"]]] * 2
    production = {one.step: one for one in adapted.segments()[0].steps}
    for loader in ("deployed", "verified"):  # with probes in between, the second
        found = chain(driven / f"steps-{loader}.chain")
        assert list(found) == [6, 7, 8, 9]
        assert all(one.digests == production[step].digests for step, one in found.items())
        assert all(told["lr"][str(step)] == one.metrics["lr"] for step, one in found.items())


def test_a_probe_sees_what_the_step_would_compute(adapted: Adapted) -> None:
    steps, probes = (
        chain(driven_of(adapted) / f"{name}-verified.chain") for name in ("steps", "probes")
    )
    assert list(probes) == list(steps)
    for step, one in probes.items():
        expected = {
            link: digest
            for link, digest in steps[step].digests.items()
            if link.stage not in OF_THE_UPDATE
        }
        assert one.digests == expected, step
        assert one.metrics["loss/sum"] == pytest.approx(
            steps[step].metrics["loss/sum"], nan_ok=True
        )


def test_the_desk_replays_it_bit_for_bit(adapted: Adapted) -> None:
    frozen = adapted.desk("freeze")
    assert frozen["ok"], frozen
    assert adapted.desk("hash")["ok"]
    found = {one["name"]: one["outcome"] for one in adapted.desk("check")["data"]["findings"]}
    restored = {name: outcome for name, outcome in found.items() if name.startswith("restored-")}
    assert set(restored.values()) == {"agrees"}, restored
    assert {"restored-params", "restored-optimizer", "restored-scheduler", "restored-rng"} <= set(
        restored
    )
    replayed = adapted.desk("replay", "--last", "14")
    assert (replayed["exit"], replayed["verdict"]) == (0, "agrees"), replayed
    assert (
        replayed["data"]["steps_executed"] == 9
    )  # 6 to 14, with two steps left out and two epochs begun
