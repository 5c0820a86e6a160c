"""What the recorder costs.

A GPT of 8.4 M parameters on this CPU, recorder on and off, alternating by step.

Run it as `python tests/bench/bench_recorder.py`; the arms of a round take turns in a new random
order each time, inside one process and on one model, so that whatever else the machine does hits
them alike. It never keeps what it records.

What is said of a round is the difference between its recorded and its bare step. The bound that
counts is of the median, by the sign test: it assumes no distribution. Beside it stands the mean
without the highest and the lowest fifth (Yuen, Biometrika 61, 1974), whose bound is a t-interval
with the winsorized deviation. What a recorded step leaves to the next one (its writer, cold caches)
falls on every arm alike and would be missed: bare steps behind a recorded one are therefore
compared with bare ones behind a bare one.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiketriage.nouns.telemetry import Identity
from spiketriage.readers.telemetry.stores.native import read_segment
from spiketriage.train.recording.batch_signals import record_batch, record_logz
from spiketriage.train.recording.layers import LayerStatistics
from spiketriage.train.recording.observer import Observer
from spiketriage.train.recording.recorder import Recorder

WIDTH, LAYERS, HEADS, VOCABULARY = 256, 8, 4, 4096
WARM_UP_ROUNDS = 150  # a level is taken every 32 steps at most, and there are five
Z95 = 1.645  # one-sided
OFF = "off"
MIN_BEHIND = 20  # one bare step in nine follows a bare one


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to record, and how much of step time it may cost by its upper bound."""

    name: str
    aim: float
    budget_share: float | None
    digest_period: int
    sample_stride: int


ARMS = (
    Arm(
        name="scalar stages, rotating digests",
        aim=0.01,
        budget_share=0.01,
        digest_period=64,
        sample_stride=64,
    ),
    Arm(
        name="the same, every digest every step",
        aim=0.03,
        budget_share=None,
        digest_period=1,
        sample_stride=64,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds a step.

    Of each arm in the order of rounds, and of bare steps by what ran before them.
    """

    by_arm: dict[str, list[float]]
    behind_recorded: list[float]
    behind_bare: list[float]


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x_BTD: Tensor) -> Tensor:
        B, T, _ = x_BTD.shape
        q, k, v = (
            self.qkv(self.norm1(x_BTD)).view(B, T, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        )
        mixed = (
            F.scaled_dot_product_attention(q, k, v, is_causal=True)
            .transpose(1, 2)
            .reshape(B, T, WIDTH)
        )
        x_BTD = x_BTD + self.out(mixed)
        return x_BTD + self.down(F.gelu(self.up(self.norm2(x_BTD))))


class GPT(nn.Module):
    """8.4 M parameters in 100 tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        x_BTD = self.embed(tokens_BT)
        for block in self.blocks:
            x_BTD = block(x_BTD)
        return self.head(self.norm(x_BTD))


@dataclass(slots=True)
class Watch:
    """A recorder with what it watches."""

    recorder: Recorder
    observer: Observer
    layers: LayerStatistics


class Job:
    """A model that trains on random tokens; every arm steps the same one."""

    def __init__(self, rows: int, length: int) -> None:
        torch.manual_seed(0)
        self.model = GPT()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.rows, self.length, self.number = rows, length, 0

    def batch(self) -> Tensor:
        self.number += 1
        return torch.randint(0, VOCABULARY, (self.rows, self.length + 1))

    def bare(self, ids: Tensor) -> None:
        """A step as it is without us: loss with z-loss, backward, clipping, update."""
        loss, _, _ = self._loss(ids)
        loss.mean().backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def recorded(self, watch: Watch, ids: Tensor) -> None:
        """The same step, recorded; the norm that is logged is the one that clips."""
        with watch.recorder.step(self.number) as record:
            record.capture({"position": self.number})
            record.tokens(ids, [f"d{row}" for row in range(self.rows)])
            record.ids({"step": self.number})
            record.tensors("batch", {"inputs": ids[:, :-1], "labels": ids[:, 1:]})
            watch.observer.begin(record)
            loss, logz, valid = self._loss(ids)
            loss.mean().backward()
            watch.layers.record(record)
            record_batch(record, ids[:, :-1], ids[:, 1:], valid, vocabulary=VOCABULARY)
            record_logz(record, logz.view_as(valid), valid)
            record.log({"loss/sum": loss.detach().sum()})
            record.series("loss/per_sample", loss.detach().view(self.rows, -1).mean(1))
            norm = watch.observer.reduced_gradients(record)
            nn.utils.clip_grads_with_norm_(self.model.parameters(), 1.0, norm)
            watch.observer.clipped(record, norm, 1.0)
            self.optimizer.step()
            watch.observer.updated(record)
            self.optimizer.zero_grad()

    def _loss(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = self.model(ids[:, :-1]).flatten(0, 1)
        logz = logits.logsumexp(-1)
        losses = logz - logits.gather(1, ids[:, 1:].reshape(-1, 1))[:, 0] + 1e-4 * logz.square()
        return losses, logz.detach(), torch.ones_like(ids[:, 1:], dtype=torch.bool)


def main(words: Sequence[str] | None = None) -> int:
    """Time the rounds, print the table; 1 when an upper bound misses its aim."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args(words)
    torch.set_num_threads(options.threads)
    job = Job(options.rows, options.length)
    with tempfile.TemporaryDirectory() as folder:
        watches = {arm.name: _watch(job, arm, Path(folder) / str(n)) for n, arm in enumerate(ARMS)}
        times = _rounds(job, watches, options.pairs)
        for watch in watches.values():
            watch.recorder.close()
        clocks = {name: _own_clock(watch) for name, watch in watches.items()}
    return _report(job, times, watches, clocks)


def _watch(job: Job, arm: Arm, folder: Path) -> Watch:
    recorder = Recorder(
        folder,
        rank=0,
        identity=_identity(),
        budget_share=arm.budget_share,
        digest_period=arm.digest_period,
        sample_stride=arm.sample_stride,
    )
    blocks = {f"blocks.{n}": block for n, block in enumerate(job.model.blocks)}
    observer = Observer(job.model.named_parameters(), job.optimizer, recorder=recorder)
    return Watch(recorder, observer, LayerStatistics(blocks, recorder))


def _identity() -> Identity:
    return Identity(
        world_size=1,
        host="bench",
        device="cpu",
        num_threads=torch.get_num_threads(),
        precision="fp32",
        kernel="fused",
        deterministic=False,
        code_path="bench",
        code_digest="",
        config_digest="",
    )


def _rounds(job: Job, watches: dict[str, Watch], num_pairs: int) -> Times:
    chooser = random.Random(0)
    times: dict[str, list[float]] = {name: [] for name in (OFF, *watches)}
    behind: dict[bool, list[float]] = {True: [], False: []}
    is_behind_recorded = False
    for round_number in range(WARM_UP_ROUNDS + num_pairs):
        order = list(times)
        chooser.shuffle(order)
        for name in order:
            step: Callable[[Tensor], None] = (
                job.bare if name == OFF else _recorded(job, watches[name])
            )
            ids = job.batch()
            started_s = time.perf_counter()
            step(ids)
            taken_s = time.perf_counter() - started_s
            if round_number >= WARM_UP_ROUNDS:
                times[name].append(taken_s)
                if name == OFF:
                    behind[is_behind_recorded].append(taken_s)
            is_behind_recorded = name != OFF
    return Times(by_arm=times, behind_recorded=behind[True], behind_bare=behind[False])


def _recorded(job: Job, watch: Watch) -> Callable[[Tensor], None]:
    return lambda ids: job.recorded(watch, ids)


def _own_clock(watch: Watch) -> list[float]:
    """Seconds a step that the recorder itself says it took, after the warm-up."""
    steps = read_segment(watch.recorder.path).steps[WARM_UP_ROUNDS + 1 :]
    return [record.metrics["time/recorder_s"] for record in steps]


def _report(
    job: Job, times: Times, watches: dict[str, Watch], clocks: dict[str, list[float]]
) -> int:
    bare = times.by_arm[OFF]
    off_s = statistics.median(bare)
    size = sum(one.numel() for one in job.model.parameters()) / 1e6
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(
        f"{size:.1f} M parameters, {job.rows} × {job.length} tokens, "
        f"{torch.get_num_threads()} threads; load {load}"
    )
    print(f"{len(bare)} pairs; off: median {off_s * 1e3:.1f} ms a step\n")
    columns = (
        "recorded | median of differences | upper 95 % bound | trimmed mean | its bound | own "
        "clock | level"
    )
    print(f"| {columns} | aim |\n|---|---|---|---|---|---|---|---|")
    missed = 0
    for arm in ARMS:
        differences = sorted(on - off for on, off in zip(times.by_arm[arm.name], bare, strict=True))
        middle, upper = statistics.median(differences) / off_s, _upper(differences) / off_s
        own = statistics.median(clocks[arm.name]) / off_s
        missed += upper > arm.aim
        told = (middle, upper, *(value / off_s for value in _trimmed(differences)), own)
        shares = " | ".join(f"{share:+.2%}" for share in told)
        print(
            f"| {arm.name} | {shares} | {watches[arm.name].recorder.budget.number} | ≤ "
            f"{arm.aim:.0%} |"
        )
    if len(times.behind_bare) > MIN_BEHIND:
        low, middle, high = (
            value / off_s for value in _carried(times.behind_recorded, times.behind_bare)
        )
        print(
            f"\na bare step behind a recorded one: {middle:+.2%} ({low:+.2%} to "
            f"{high:+.2%} at 95 %, bootstrap)"
        )
    return int(missed > 0)


def _upper(ordered: Sequence[float]) -> float:
    """Distribution-free 95 % upper bound of the median.

    The order statistic that a sign test cannot refuse.
    """
    rank = math.ceil(len(ordered) / 2 + Z95 * math.sqrt(len(ordered)) / 2)
    return ordered[min(rank, len(ordered) - 1)]


def _trimmed(ordered: Sequence[float]) -> tuple[float, float]:
    """Mean without the outer fifths, and its 95 % upper bound.

    T is taken for z, at hundreds of pairs.
    """
    cut = len(ordered) // 5
    kept = ordered[cut : len(ordered) - cut]
    winsorized = [min(max(one, kept[0]), kept[-1]) for one in ordered]
    mean = statistics.fmean(kept)
    error = statistics.stdev(winsorized) / (len(kept) / len(ordered) * math.sqrt(len(ordered)))
    return mean, mean + Z95 * error


def _carried(
    behind_recorded: Sequence[float], behind_bare: Sequence[float]
) -> tuple[float, float, float]:
    """Difference of the medians, between the ends of its two-sided 95 % bootstrap interval."""
    chooser = random.Random(1)
    drawn = sorted(
        statistics.median(chooser.choices(behind_recorded, k=len(behind_recorded)))
        - statistics.median(chooser.choices(behind_bare, k=len(behind_bare)))
        for _ in range(1000)
    )
    return (
        drawn[25],
        statistics.median(behind_recorded) - statistics.median(behind_bare),
        drawn[974],
    )


if __name__ == "__main__":
    sys.exit(main())
