"""Every signal against an independent route.

Torch in float64, Python integers, or arithmetic by hand.
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recording import IDENTITY, ring_batches
from torch import nn

from spiketriage.nouns.telemetry import Link, Segment
from spiketriage.readers.telemetry.stores.native import read_segment
from spiketriage.train.recording import fingerprint as device_digest
from spiketriage.train.recording.batch_signals import record_batch, record_logz
from spiketriage.train.recording.budget import LEVELS, Budget
from spiketriage.train.recording.expert_signals import record_router
from spiketriage.train.recording.fp8_signals import record_fallback, record_fp8
from spiketriage.train.recording.identity import identify
from spiketriage.train.recording.layers import LayerStatistics, attention_logit_max
from spiketriage.train.recording.observer import Observer
from spiketriage.train.recording.recorder import Recorder
from spiketriage.train.recording.tensors import digest
from spiketriage.wire.chain import METRICS, SERIES


def recorder_in(folder: Path, **options: Any) -> Recorder:
    return Recorder(folder, rank=0, identity=IDENTITY, budget_share=None, **options)


def read(recorder: Recorder) -> Segment:
    recorder.close()
    segment = read_segment(recorder.path)
    for record in segment.steps:  # whatever is written has a name and a unit
        assert set(record.metrics) <= set(METRICS)
        assert set(record.series) <= set(SERIES)
    return segment


def model_of(width: int, depth: int = 2) -> nn.Sequential:
    torch.manual_seed(width)
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(depth)])


def train(
    model: nn.Module, recorder: Recorder, num_steps: int, **options: Any
) -> list[dict[str, float]]:
    """Train with the observer and return what float64 says of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    observer = Observer(model.named_parameters(), optimizer, recorder=recorder, **options)
    truth = []
    for number in range(1, num_steps + 1):
        with recorder.step(number) as step:
            before = [one.detach().double().clone() for one in model.parameters()]
            weight = next(model.parameters())
            model(
                torch.randn(16, weight.shape[1], dtype=weight.dtype) * number
            ).square().mean().backward()
            norm = math.sqrt(
                sum(float(one.grad.double().square().sum()) for one in model.parameters())
            )
            observer.local_gradients(step)
            given = observer.reduced_gradients(step)
            nn.utils.clip_grads_with_norm_(model.parameters(), 0.5, given)
            observer.clipped(step, given, 0.5)
            optimizer.step()
            observer.updated(step)
            change = [
                one.detach().double() - old
                for one, old in zip(model.parameters(), before, strict=True)
            ]
            ratios = []
            for one in model.parameters():
                state = optimizer.state[one]
                second = state["exp_avg_sq"].double() / (1 - 0.95 ** float(state["step"]))
                ratios.append(float((one.grad.double().square() / second).mean().sqrt()))
            optimizer.zero_grad()
        truth.append(
            {
                "grad/norm": norm,
                "grad/norm_local": norm,
                "clip/coefficient": min(1.0, 0.5 / (norm + 1e-6)),
                "update/norm": math.sqrt(sum(float(one.square().sum()) for one in change)),
                "rms_t/max": max(ratios),
                "optimizer/step": number,
                "optimizer/step_max": number,
                "lr": 3e-3,
                "beta2": 0.95,
                "weight_decay": 0.1,
                "clip/threshold": 0.5,
            }
        )
    return truth


@pytest.mark.parametrize("stride", [1, 4])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 2e-2), (torch.float64, 2e-6)]
)
def test_norms_update_and_rms_are_those_of_float64(
    tmp_path: Path, dtype: torch.dtype, tolerance: float, stride: int
) -> None:
    recorder = recorder_in(tmp_path, sample_stride=stride)  # which these small tensors do not heed
    truth = train(model_of(40).to(dtype), recorder, 5)
    segment = read(recorder)
    for record, expected in zip(segment.steps, truth, strict=True):
        assert {name: record.metrics[name] for name in expected} == pytest.approx(
            expected, rel=tolerance
        )
        assert math.hypot(*record.series["grad/norm_per_tensor"]) == pytest.approx(
            expected["grad/norm"], rel=1e-5
        )
        assert max(record.series["rms_t/per_tensor"]) == record.metrics["rms_t/max"]
    (names,) = [notice.data["names"] for notice in segment.notices if notice.kind == "tensors"]
    assert names == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert len(segment.steps[0].series["update/norm_per_tensor"]) == 4


def test_a_sample_of_large_tensors_estimates_what_all_elements_say(tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path, sample_stride=16)
    truth = train(model_of(512), recorder, 3)
    for record, expected in zip(read(recorder).steps, truth, strict=True):
        assert record.metrics["recorder/sample_stride"] == 16
        assert record.metrics["grad/norm"] == pytest.approx(
            expected["grad/norm"], rel=1e-5
        )  # never sampled
        assert record.metrics["update/norm"] == pytest.approx(expected["update/norm"], rel=0.05)
        assert record.metrics["rms_t/max"] == pytest.approx(expected["rms_t/max"], rel=0.1)


def test_an_optimizer_without_second_moments_is_recorded_without_rms_and_says_so(
    tmp_path: Path,
) -> None:
    model, recorder = model_of(8), recorder_in(tmp_path)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    observer = Observer(model.named_parameters(), optimizer, recorder=recorder)
    with recorder.step(1) as step:
        model(torch.ones(2, 8)).sum().backward()
        norm = observer.reduced_gradients(step)
        optimizer.step()
        observer.updated(step)
    segment = read(recorder)
    assert segment.steps[0].metrics["update/norm"] == pytest.approx(0.5 * float(norm))
    assert "rms_t/max" not in segment.steps[0].metrics
    assert {
        notice.text.partition(":")[0] for notice in segment.notices if notice.kind == "off"
    } == {
        "rms_t",
        "grad/norm_local",
    }


def test_what_is_no_number_is_left_out_and_named(tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path)
    with recorder.step(1) as step:
        step.log(
            {
                "lr": np.float32(0.5),
                "eps": object(),
                "loss/sum": torch.tensor(2.0, requires_grad=True),
            }
        )  # type: ignore[dict-item]
    segment = read(recorder)
    assert {name: segment.steps[0].metrics.get(name) for name in ("lr", "eps", "loss/sum")} == {
        "lr": 0.5,
        "eps": None,
        "loss/sum": 2.0,
    }
    assert [notice.text for notice in segment.notices] == ["eps is a object, not a number"]


def test_a_nonfinite_gradient_is_marked_even_when_its_digest_has_no_turn(tmp_path: Path) -> None:
    model, recorder = model_of(8), recorder_in(tmp_path, digest_period=4)
    observer = Observer(
        model.named_parameters(), torch.optim.AdamW(model.parameters()), recorder=recorder
    )
    for number in range(1, 5):
        with recorder.step(number) as step:
            model(torch.ones(2, 8)).sum().backward()
            model[1].bias.grad[3] = math.nan
            observer.reduced_gradients(step)
    records = read(recorder).steps
    assert [record.nonfinite for record in records] == [(Link("reduced_gradient", "1.bias"),)] * 4
    assert sorted(link.key for record in records for link in record.digests) == [
        "0.bias",
        "0.weight",
        "1.bias",
        "1.weight",
    ]


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2]
)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_finiteness_is_exact_in_every_dtype(dtype: torch.dtype, bad: float) -> None:
    values = torch.ones(300)
    assert digest(values.to(dtype)).finite
    largest = torch.full((300,), torch.finfo(dtype).max, dtype=torch.float64).to(dtype)
    assert digest(largest).finite  # its squares overflow, its elements do not
    values[123] = bad
    assert not digest(values.to(dtype)).finite


def twice_multilinear(data: bytes) -> list[int]:
    """The fingerprint in Python integers, written from its description."""
    mask, rows = (1 << 64) - 1, 4096

    def mix(x: int) -> int:
        x = (x + 0x9E3779B97F4A7C15) & mask
        x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ x >> 27) * 0x94D049BB133111EB) & mask
        return x ^ x >> 31

    padded = data + bytes(-len(data) % (4 * rows))
    lanes = [int.from_bytes(padded[i : i + 4], "little") for i in range(0, len(padded), 4)]
    totals = []
    for seed in (0x243F6A8885A308D3, 0x13198A2E03707344):
        total = mix(seed ^ len(data))
        for row in range(len(lanes) // rows):
            part = lanes[row * rows : (row + 1) * rows]
            inner = sum(lane * mix(seed + at) for at, lane in enumerate(part) if lane) & mask
            total += mix(inner) * (mix((row + seed) & mask) | 1)
        totals.append(total & mask)
    return totals


def test_the_device_fingerprint_is_the_one_that_is_described() -> None:
    torch.manual_seed(0)
    for values in (
        torch.randn(5001),
        torch.arange(7, dtype=torch.uint8),
        torch.randn(3, 3).bfloat16(),
        torch.zeros(0),
    ):
        found = [one & ((1 << 64) - 1) for one in device_digest.fingerprint(values).tolist()]
        assert found == twice_multilinear(values.reshape(-1).view(torch.uint8).numpy().tobytes())


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 9999), st.integers(0, 9999), st.integers(0, 31))
def test_the_device_fingerprint_sees_flips_swaps_and_paired_sign_flips(
    left: int, right: int, bit: int
) -> None:
    values = torch.arange(1, 10_001, dtype=torch.int32) * 7919
    seen = {tuple(device_digest.fingerprint(values).tolist())}
    flipped = values.clone()
    flipped[left] ^= -(1 << 31) if bit == 31 else 1 << bit
    seen.add(tuple(device_digest.fingerprint(flipped).tolist()))
    if left != right:
        swapped, signs = values.clone(), values.clone()
        swapped[[left, right]] = values[[right, left]]
        signs[[left, right]] ^= -(1 << 31)
        seen |= {tuple(device_digest.fingerprint(one).tolist()) for one in (swapped, signs)}
    assert len(seen) == (4 if left != right else 2)


class Attention(nn.Module):
    """Shows its largest logit, as a fused kernel would not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = x @ x.transpose(-1, -2)
        self.logit_max = logits.detach().max()
        return logits.softmax(-1) @ x


def layered() -> tuple[nn.Sequential, list[torch.Tensor]]:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 6), Attention(), nn.Linear(6, 2)), [
        torch.randn(2, 5, 6) for _ in range(2)
    ]


def expected_layers(model: nn.Sequential, batches: list[torch.Tensor]) -> dict[str, list[float]]:
    shown: list[list[torch.Tensor]] = [[], [], []]
    for batch in batches:
        for place, module in enumerate(model):
            batch = module(batch)
            shown[place].append(batch.detach().double())
    joined = [torch.cat([one.reshape(-1) for one in parts]) for parts in shown]
    logits = max(float((first @ first.transpose(-1, -2)).max()) for first in shown[0])
    return {
        "activations/rms": [float(one.square().mean().sqrt()) for one in joined],
        "activations/amax": [float(one.abs().max()) for one in joined],
        "attention/logit_max": [logits],
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "dtype"),
    [
        ("", torch.float32),
        ("", torch.bfloat16),
        ("eager", torch.float32),
        ("aot_eager", torch.bfloat16),
    ],
)
def test_layer_statistics_cover_all_microbatches_compiled_or_not(
    tmp_path: Path, backend: str, dtype: torch.dtype
) -> None:
    model, batches = layered()
    model, batches = model.to(dtype), [one.to(dtype) for one in batches]
    expected = expected_layers(model, batches)
    recorder = recorder_in(tmp_path)
    layers = LayerStatistics(dict(model.named_children()), recorder)
    called = compiled(model, backend) if backend else model
    for number in (1, 2):
        with recorder.step(number) as step:
            for batch in batches:
                called(batch).sum().backward()
            layers.record(step)
    segment = read(recorder)
    for record in segment.steps:
        for name, values in expected.items():
            tolerance = 1e-5 if dtype == torch.float32 else 1e-2
            assert record.series[name] == pytest.approx(values, rel=tolerance)
    assert [notice.kind for notice in segment.notices] == ["layers"]


def test_hooks_that_a_compiled_model_passes_by_are_said_to_be_off(tmp_path: Path) -> None:
    model, batches = layered()
    recorder = recorder_in(tmp_path)
    called = compiled(model, "eager")
    called(batches[0])
    layers = LayerStatistics(dict(model.named_children()), recorder)
    with recorder.step(1) as step:
        called(batches[0])
        layers.record(step)
    segment = read(recorder)
    if (
        "activations/rms" not in segment.steps[0].series
    ):  # a torch that looks for late hooks has nothing to confess
        (notice,) = [notice for notice in segment.notices if notice.kind == "off"]
        assert "their hooks did not run" in notice.text
        assert "0, 1, 2" in notice.text
    else:
        assert segment.steps[0].series["activations/rms"][0] > 0


def compiled(model: nn.Module, backend: str) -> Any:
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own deprecations while it imports its compiler
        return torch.compile(model, backend=backend)


def test_attention_maximum_is_that_of_the_masked_product() -> None:
    q, k = torch.randn(2, 3, 9, 4), torch.randn(2, 3, 9, 4)
    full = q.double() @ k.double().transpose(-1, -2) / 2
    causal = full.masked_fill(~torch.ones(9, 9, dtype=torch.bool).tril(), -math.inf)
    assert float(attention_logit_max(q, k, rows=4)) == pytest.approx(float(causal.max()), rel=1e-5)
    assert float(attention_logit_max(q, k, is_causal=False, rows=4)) == pytest.approx(
        float(full.max()), rel=1e-5
    )


def test_batch_and_log_partition_signals(tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path)
    inputs = torch.tensor([[0, 0, 1, 199]])
    labels, valid = torch.tensor([[0, 1, 199, -100]]), torch.tensor([[True, True, True, False]])
    with recorder.step(1) as step:
        record_batch(step, inputs, labels, valid, vocabulary=200)
        record_logz(step, torch.tensor([[1.0, 2.0, 6.0, 99.0]]), valid)
    (record,) = read(recorder).steps
    assert record.metrics["tokens/valid"] == 3
    assert record.metrics["tokens/entropy"] == pytest.approx(1.5 * math.log(2))
    assert (record.metrics["logz/mean"], record.metrics["logz/max"]) == (3.0, 6.0)
    # 200 ids in ranges of 4: the last id is in the 50th
    assert [(at, share) for at, share in enumerate(record.series["tokens/histogram"]) if share] == [
        (0, 0.75),
        (49, 0.25),
    ]
    assert record.series["labels/histogram"][0] == pytest.approx(2 / 3)


def test_router_signals(tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path)
    logits = torch.tensor(
        [[0.0, 0.0, 0.0, 0.0], [math.log(3), 0.0, -math.inf, -math.inf], [9.0, 9.0, 9.0, 9.0]]
    )
    expert = torch.tensor([[0, 1], [0, 1], [3, 3]])
    kept = torch.tensor([[True, True], [False, True], [True, True]])
    bias = torch.tensor([0.5, 0.0, 0.0, -1.0])
    with recorder.step(1) as step:
        record_router(
            step,
            logits,
            expert,
            valid_N=torch.tensor([True, True, False]),
            kept_NC=kept,
            bias_E=bias,
        )
        bias.zero_()  # the balancing step comes before the record is written
        record_router(step, logits[:1], expert[:1])
    (record,) = read(recorder).steps
    assert record.series["moe/load"] == (1, 2, 0, 0, 1, 1, 0, 0)
    assert record.series["moe/drop_share"] == pytest.approx((0.25, 0))
    skewed = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert record.series["moe/router_entropy"] == pytest.approx(
        ((math.log(4) + skewed) / 2, math.log(4)), rel=1e-6
    )
    assert record.series["moe/load_entropy"] == pytest.approx(
        (-(math.log(1 / 3) / 3 + 2 / 3 * math.log(2 / 3)), math.log(2)), rel=1e-6
    )
    assert record.series["moe/bias"] == (0.5, 0, 0, -1)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8_signals_are_what_the_cast_does(tmp_path: Path, dtype: torch.dtype) -> None:
    recorder = recorder_in(tmp_path)
    values = torch.cat([torch.logspace(-9, 9, 2001), torch.zeros(5), -torch.logspace(-9, 9, 2001)])
    scale = torch.tensor(0.5)
    with recorder.step(1) as step:
        record_fp8(
            step, values, scale, dtype, history_A=torch.tensor([1.0, 7.0, 2.0]), delay_steps=1
        )
        record_fallback(step, recorder, ["head.weight"])
    segment = read(recorder)
    limit = torch.finfo(dtype).max
    stored = (values * scale).clamp(-limit, limit).to(dtype).float()
    series = segment.steps[0].series
    assert series["fp8/amax"] == pytest.approx((1e9,))
    assert series["fp8/underflow_share"] == pytest.approx(
        (float(((stored == 0) & (values != 0)).float().mean()),)
    )
    assert series["fp8/saturated_share"] == pytest.approx(
        (float((values.abs() * 0.5 > limit).float().mean()),)
    )
    assert (series["fp8/scale"], series["fp8/scale_delay_steps"], series["fp8/amax_history"]) == (
        (0.5,),
        (1,),
        (7,),
    )
    assert segment.steps[0].metrics["fp8/num_fallback"] == 1
    assert [notice.text for notice in segment.notices] == ["not in FP8: head.weight"]


def test_the_ring_keeps_the_last_batches_with_the_state_before_the_forward(tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path, ring_slots=3)
    states = []
    for number in range(1, 6):
        with recorder.step(number) as step:
            states.append(torch.get_rng_state())
            step.capture({"position": number})
            step.tokens(torch.arange(6).view(2, 3) * number, [[f"d{number}"], ["e"]])
            torch.rand(3)
    segment = read(recorder)
    batches, num_torn = ring_batches(recorder.path.with_suffix(".ring"))
    assert num_torn == 0
    assert [(batch.step, batch.sequence, batch.shape) for batch in batches] == [
        (n, n, (2, 3)) for n in (3, 4, 5)
    ]
    last = batches[-1]
    assert last.tokens == (0, 5, 10, 15, 20, 25)
    assert last.record["documents"] == [["d5"], ["e"]]
    assert last.record["cursor"] == {"position": 5}
    state = bytearray.fromhex(last.record["rng"]["torch"])
    torch.set_rng_state(torch.frombuffer(state, dtype=torch.uint8))
    assert torch.equal(torch.get_rng_state(), states[-1])
    assert [record.cursor for record in segment.steps] == [{"position": n} for n in range(1, 6)]
    assert len({record.rng for record in segment.steps}) == 5


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_damaged_ring_gives_intact_batches_or_shows_the_damage(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp() / "ring"
    source = folder / "rank-00000.attempt-000.ring"
    if not source.exists():
        with recorder_in(folder, ring_slots=3) as recorder:
            for number in range(1, 5):
                with recorder.step(number) as step:
                    step.tokens(torch.full((2, 2), number))
    content = bytearray(source.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    damaged = folder / "damaged.ring"
    damaged.write_bytes(content[: data.draw(st.sampled_from([len(content), at]))])
    first_page = content[:24] != source.read_bytes()[:24] or damaged.stat().st_size < 24
    if first_page:
        with pytest.raises(ValueError, match=r"ring|first page"):
            ring_batches(damaged)
        return
    batches, num_torn = ring_batches(damaged)
    assert all(batch.tokens == (batch.step,) * 4 for batch in batches)
    assert len(batches) == 3 or num_torn


def test_a_batch_too_large_for_its_slot_is_counted(tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path)
    for number, length in ((1, 4), (2, 100_000), (3, 4)):
        with recorder.step(number) as step:
            step.tokens(torch.zeros(1, length, dtype=torch.long))
    segment = read(recorder)
    assert segment.num_dropped == 1
    batches, _ = ring_batches(recorder.path.with_suffix(".ring"))
    assert [batch.step for batch in batches] == [1, 3]


def test_identity_holds_what_is_asked_for_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("code/a.py", "config.json", "tokenizer.json", "index.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    identity = identify(
        run=tmp_path,
        code=tmp_path / "code",
        config=tmp_path / "config.json",
        world_size=1,
        device="cpu",
        precision="fp32",
        kernel="math",
        hparams={"lr": 0.1, "hub_token": "secret of the hub"},
        environment=["OMP_NUM_THREADS", "WANDB_API_KEY"],
        tokenizer=tmp_path / "tokenizer.json",
        dataset=tmp_path / "index.json",
    )
    with Recorder(tmp_path / "telemetry", rank=0, identity=identity) as recorder:
        pass
    found = read_segment(recorder.path).identity
    assert found == identity
    assert found is not None
    assert found.environment["OMP_NUM_THREADS"] == "3"
    assert found.environment["WANDB_API_KEY"].startswith("redacted-sha256-")
    assert found.hparams["lr"] == 0.1
    assert b"secret" not in recorder.path.read_bytes()
    assert len({found.tokenizer_digest, found.dataset_digest, found.config_digest, ""}) == 4


@given(st.lists(st.floats(0, 0.5), min_size=1, max_size=400))
def test_the_budget_moves_one_level_at_a_time_and_never_silently(shares: list[float]) -> None:
    budget = Budget(0.01)
    for share in shares:
        before = budget.number
        said = budget.add(share, 1.0)
        assert abs(budget.number - before) <= 1
        assert 0 <= budget.number < len(LEVELS)
        assert bool(said) or budget.number == before


def test_the_budget_comes_back_after_a_busy_spell() -> None:
    budget = Budget(0.01)
    for _ in range(40):
        budget.add(0.5, 1.0)
    assert budget.number == 1
    for _ in range(32 * 40):
        budget.add(0.0, 1.0)
    assert budget.number == 0


def test_thinned_to_the_last_level_the_gradient_norm_stays_and_the_update_has_its_turn(
    tmp_path: Path,
) -> None:
    model = model_of(8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with Recorder(tmp_path, rank=0, identity=IDENTITY) as recorder:
        observer = Observer(model.named_parameters(), optimizer, recorder=recorder)
        for number in range(1, 181):  # steps so short that every level is too dear
            with recorder.step(number) as step:
                model(torch.ones(1, 8)).sum().backward()
                observer.reduced_gradients(step)
                optimizer.step()
                observer.updated(step)
                optimizer.zero_grad()
    segment = read(recorder)
    assert [notice.data["level"] for notice in segment.notices if notice.kind == "thinning"][
        :4
    ] == [1, 2, 3, 4]
    last = segment.steps[-12:]
    assert all("grad/norm" in record.metrics for record in last)
    assert [record.step for record in last if "update/norm" in record.metrics] == [176]
