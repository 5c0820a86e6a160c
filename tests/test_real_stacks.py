"""spiketriage on what HF Trainer, Accelerate, Lightning, FSDP2 with torch DCP and a torchtitan-like run really leave.

A step of each real run is poisoned; copies are damaged as disks, copies and rotations damage them.
The expected names and numbers are those of the run script and of the damage, never what a reader
said.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import stack_damage as damage
from stack_cases import Stacks, Told, on

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def stacks(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Stacks]:
    cases = {
        id(case): case
        for item in request.session.items
        if (case := getattr(item.function, "case", None))
    }
    made = Stacks(tmp_path_factory.mktemp("stacks"), cases.values())
    yield made
    made.close()


@pytest.fixture
def told(stacks: Stacks, request: pytest.FixtureRequest) -> Told:
    return stacks.told(request.function.case)


def has(text: str, *sentences: str) -> None:
    """Every sentence stands in one line of its own."""
    for sentence in sentences:
        assert sum(sentence in line for line in text.splitlines()) == 1, (
            f"{sentence!r} not once in:\n{text}"
        )


def flip_weights(run: Path) -> None:
    damage.in_safetensors(
        run / "checkpoint-4" / "model.safetensors", "transformer.wte.weight"
    ).flip()


# A NaN in step 5: the newest generation before it is good, those after it hold NaN.


@on("hf_trainer", flip_weights)
def test_hf_trainer_hides_a_nan_and_safetensors_a_flipped_bit(told: Told) -> None:
    assert told.codes == (0, 0, 1)
    has(
        told.freeze.stdout,
        "onset: step 5: grad_norm is not a finite number",
        "known good: checkpoint-4, older: checkpoint-2",
        "refused checkpoint-6: not older than the onset at step 5",
    )
    has(
        told.hash.stdout,
        "checkpoint-2, checkpoint-4, checkpoint-6 and 1 more: safetensors has no checksum",
    )
    has(
        told.hash.stdout,
        "checkpoint-6, checkpoint-8: not read by the freeze, so compared with nothing",
    )
    assert list(told.checked) == ["stored-finiteness"]
    assert told.checked["stored-finiteness"].startswith(
        "NaN or infinities in checkpoint-6, checkpoint-8: do not resume"
    )
    has(told.check.stdout, "what the default NaN filter let through")


@on("accelerate")
def test_accelerate_numbers_saves_not_steps(told: Told) -> None:
    assert told.codes == (0, 0, 1)
    has(told.freeze.stdout, "onset: step 5: grad_norm is not a finite number")
    has(told.freeze.stdout, "known good: checkpoints/checkpoint_1, older: checkpoints/checkpoint_0")
    assert list(told.checked) == ["stored-finiteness"]
    has(
        told.check.stdout,
        "NaN or infinities in checkpoints/checkpoint_2, checkpoints/checkpoint_3: do not resume",
    )
    has(told.check.stdout, "of 16, the first at [0] in model.safetensors")


@on("lightning")
def test_lightning_logs_count_as_its_checkpoints_do(told: Told) -> None:
    assert told.codes == (0, 0, 1)
    has(
        told.freeze.stdout,
        "onset: step 5: loss is not a finite number",
        "note: logs: the log numbers a step from 0",
    )
    has(
        told.freeze.stdout,
        "known good: checkpoints/epoch=0-step=4.ckpt, older: checkpoints/epoch=0-step=2.ckpt",
    )
    assert "no checksum" not in told.hash.stdout
    bad = [f"checkpoints/{name}.ckpt" for name in ("epoch=0-step=6", "epoch=0-step=8", "last")]
    assert told.checked["stored-finiteness"].startswith(
        f"NaN or infinities in {', '.join(bad)}: do not resume"
    )


@on("fsdp2")
def test_fsdp2_names_the_rank_whose_loss_went_first(told: Told) -> None:
    assert told.codes == (0, 0, 1)
    has(
        told.freeze.stdout,
        "onset: step 5: ",
        "of 2 ranks' losses only that of rank 1 is not finite",
    )
    has(told.freeze.stdout, "known good: checkpoints/step_4, older: checkpoints/step_2")
    assert list(told.checked) == ["stored-finiteness"]
    has(
        told.check.stdout,
        "NaN or infinities in checkpoints/step_6, checkpoints/step_8: do not resume",
    )


@on("torchtitan_like")
def test_torchtitan_like(told: Told) -> None:
    assert told.codes == (0, 0, 1)
    has(told.freeze.stdout, "onset: step 5: grad_norm is not a finite number")
    has(
        told.freeze.stdout,
        "known good: checkpoint/step-4, older: checkpoint/step-2",
        "2 copied, 6 pinned",
    )
    has(
        told.check.stdout,
        "NaN or infinities in checkpoint/step-6, checkpoint/step-8: do not resume",
    )
    has(told.check.stdout, "tok_embeddings.weight: 512 NaN")


# Bytes that changed at rest, before anybody looked.


def rotten_hf(run: Path) -> None:
    damage.in_torch_file(run / "checkpoint-2" / "optimizer.pt", "1").flip()
    damage.truncate(run / "checkpoint-4" / "model.safetensors")
    (run / "checkpoint-6" / "optimizer.pt").unlink()
    damage.point(run / "checkpoint-8" / "model.safetensors")


@on("hf_trainer", rotten_hf)
def test_rotten_hf_trainer(told: Told) -> None:
    assert told.codes == (6, 4, 1)
    has(
        told.freeze.stdout,
        "known good: none, older: none",
        "refused checkpoint-2: optimizer.pt: tensor state.0.exp_avg",
    )
    has(
        told.freeze.stdout,
        "refused checkpoint-4: model.safetensors: size: expected 12096 bytes, as the header says",
    )
    has(
        told.hash.stdout,
        "checkpoint-2/optimizer.pt: tensor state.0.exp_avg",
        (
            "checkpoint-4/model.safetensors: size: expected 12096 bytes, as the header says, "
            "found 8064"
        ),
        "checkpoint-6: optimizer.pt is missing",
        (
            "checkpoint-8/model.safetensors: is a Git-LFS pointer: the file was never fetched "
            "(git lfs pull)"
        ),
        (
            "differs: generation-digests: do not hold what their layout promises: checkpoint-2, "
            "checkpoint-4, checkpoint-6"
        ),
    )


def rotten_accelerate(run: Path) -> None:
    saves = run / "checkpoints"
    damage.in_torch_file(saves / "checkpoint_0" / "optimizer.bin", "1").flip()
    damage.append(saves / "checkpoint_1" / "model.safetensors")
    damage.truncate(saves / "checkpoint_2" / "optimizer.bin")
    (saves / "checkpoint_3" / "random_states_0.pkl").unlink()


@on("accelerate", rotten_accelerate)
def test_rotten_accelerate(told: Told) -> None:
    assert told.codes == (6, 4, 1)
    has(told.freeze.stdout, "known good: none, older: none")
    has(
        told.hash.stdout,
        "checkpoints/checkpoint_0/optimizer.bin: tensor state.0.exp_avg (bytes ",
        (
            "checkpoints/checkpoint_1/model.safetensors: size: expected 1016 bytes, as the "
            "header says, found 1528"
        ),
        (
            "checkpoints/checkpoint_2/optimizer.bin: end: expected the end record of a zip "
            "archive, found none: truncated"
        ),
        "checkpoints/checkpoint_3: there is no random_states file of any rank",
    )


def rotten_lightning(run: Path) -> None:
    saves = run / "checkpoints"
    damage.in_torch_file(saves / "epoch=0-step=2.ckpt", "0").flip()
    damage.move(saves / "epoch=0-step=4.ckpt", "epoch=0-step=3.ckpt")
    damage.point(saves / "epoch=0-step=6.ckpt")
    damage.truncate(saves / "epoch=0-step=8.ckpt")


@on("lightning", rotten_lightning)
def test_rotten_lightning(told: Told) -> None:
    assert told.codes == (6, 4, 1)
    has(
        told.freeze.stdout,
        "known good: none, older: none",
        "refused checkpoints/epoch=0-step=3.ckpt: its parts are not of",
    )
    saves = "checkpoints/epoch=0-step="
    has(
        told.hash.stdout,
        f"{saves}2.ckpt: tensor state_dict.layers.0.weight (bytes ",
        f"{saves}3.ckpt: its parts are not of one step: 3 (name epoch=0-step=3.ckpt) and 4 (",
        f"{saves}6.ckpt: is a Git-LFS pointer: the file was never fetched",
        f"{saves}8.ckpt: end: expected the end record of a zip archive, found none: truncated",
    )
    assert "checkpoints/last.ckpt" in told.checked["stored-finiteness"]
    assert told.checked["stored-steps"].startswith(f"{saves}3.ckpt: do not resume from there")


def rotten_fsdp2(run: Path) -> None:
    saves = run / "checkpoints"
    damage.in_dcp(saves / "step_2", "model.inner.weight", chunk=1).flip()
    damage.swap(saves / "step_4" / "__0_0.distcp", saves / "step_4" / "__1_0.distcp")
    damage.truncate(saves / "step_6" / "__1_0.distcp")
    (saves / "step_8" / ".metadata").unlink()


@on("fsdp2", rotten_fsdp2)
def test_rotten_fsdp2(told: Told) -> None:
    assert told.codes == (6, 4, 1)
    has(told.freeze.stdout, "known good: none, older: none")
    has(
        told.hash.stdout,
        "checkpoints/step_2/__1_0.distcp: tensor model.inner.weight, chunk at [8, 0] (bytes ",
        "damaged, or swapped with __1_0.distcp, by their sizes",
        "damaged, or swapped with __0_0.distcp, by their sizes",
        "checkpoints/step_6/__1_0.distcp: is cut short, ",
        "context: checkpoints/step_8: incomplete, so not vouched for: .metadata: is missing",
    )
    lines = told.hash.stdout.splitlines()
    assert sum("step_4" in line for line in lines) <= 4, (
        "a swapped pair is two facts, not one for every tensor"
    )
    assert "checkpoints/step_6" in told.checked["stored-finiteness"]


def rotten_titan(run: Path) -> None:
    saves = run / "checkpoint"
    (saves / "step-2" / "__1_0.distcp").unlink()
    damage.append(saves / "step-4" / "__0_0.distcp")
    damage.point(saves / "step-6" / "__1_0.distcp")
    damage.in_dcp(saves / "step-8", "optimizer.state.output.weight.exp_avg_sq", chunk=1).flip()


@on("torchtitan_like", rotten_titan)
def test_rotten_torchtitan_like(told: Told) -> None:
    assert told.codes == (6, 4, 1)
    has(
        told.freeze.stdout,
        "known good: none, older: none",
        "refused checkpoint/step-2: __1_0.distcp: is missing",
    )
    has(
        told.hash.stdout,
        "checkpoint/step-2/__1_0.distcp: is missing",
        "checkpoint/step-4/__0_0.distcp: 512 bytes follow its last slice",
        (
            "checkpoint/step-6/__1_0.distcp: is a Git-LFS pointer: the file was never fetched "
            "(git lfs pull)"
        ),
        (
            "checkpoint/step-8/__1_0.distcp: tensor optimizer.state.output.weight.exp_avg_sq, "
            "chunk at [16, 0] (bytes "
        ),
    )


# Files that are whole and wrong: of another step, or with values that no optimizer can hold.


def rename(run: Path) -> None:
    damage.move(run / "checkpoint-4", "checkpoint-3")


@on("hf_trainer", rename)
def test_a_renamed_checkpoint_is_refused_and_moves_no_onset(told: Told) -> None:
    assert told.codes == (6, 4, 1)
    why = (
        "its parts are not of one step: 3 (the name checkpoint-3) and 4 (optimizer.pt: "
        "optimizer step, scheduler.pt: "
    )
    has(told.freeze.stdout, "known good: checkpoint-2, older: none", f"refused checkpoint-3: {why}")
    has(told.hash.stdout, f"checkpoint-3: {why}")
    assert told.checked["stored-steps"].startswith(f"checkpoint-3: do not resume from there: {why}")
    assert "onset moved" not in told.check.stdout


def plant_negative(run: Path) -> None:
    damage.in_dcp(
        run / "checkpoints" / "step_4", "optimizer.state.head.weight.exp_avg_sq", chunk=1
    ).put(-1e-8)


@on("fsdp2", plant_negative)
def test_a_negative_second_moment_is_found_behind_a_right_checksum(told: Told) -> None:
    assert told.codes == (0, 0, 1)
    wrong = (
        "optimizer.state.head.weight.exp_avg_sq: 1 of 512 sums of squares are negative, which "
        "is impossible"
    )
    has(told.freeze.stdout, "known good: checkpoints/step_2, older: none")
    has(told.freeze.stdout, f"refused checkpoints/step_4: not healthy: {wrong}")
    assert told.checked["stored-values"] == f"checkpoints/step_4: {wrong}"


# What changes after the freeze is seen even where the format has no checksum, and again by the next
# `hash`.


@on("hf_trainer", then=flip_weights)
def test_a_bit_that_flips_after_the_freeze(told: Told) -> None:
    assert told.codes == (0, 4, 1)
    assert told.again is not None
    assert told.again.returncode == 4
    has(told.freeze.stdout, "known good: checkpoint-4, older: checkpoint-2")
    for one in (told.hash, told.again):
        has(one.stdout, "checkpoint-4/model.safetensors: changed since the freeze: expected ")
    has(told.hash.stdout, "context: known good is now checkpoint-2, not checkpoint-4")
