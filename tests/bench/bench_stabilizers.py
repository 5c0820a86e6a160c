"""What each stabilizer costs on this CPU beside the plain operation that it replaces.

Milliseconds and largest tensor.

Run: `python tests/bench/bench_stabilizers.py`; it prints a Markdown table of medians over
alternating runs, one thread.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from spiketriage.train.stabilizers import fp8
from spiketriage.train.stabilizers.clip import clip_
from spiketriage.train.stabilizers.cross_entropy import cross_entropy_sum, linear_cross_entropy_sum
from spiketriage.train.stabilizers.qk_norm import QKNorm
from spiketriage.train.stabilizers.softcap import capped_attention

NUM_RUNS = 7
NUM_TOKENS, WIDTH, VOCABULARY = 1024, 256, 32_000
HEADS, LENGTH, HEAD_WIDTH = 8, 256, 64

Work = Callable[[], Any]


class Largest(TorchDispatchMode):
    """Bytes of the largest tensor that any operator returns."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        given = {
            id(one) for one in tree_leaves((args, kwargs))
        }  # an operator in place makes nothing new
        new = [
            one for one in tree_leaves(result) if isinstance(one, Tensor) and id(one) not in given
        ]
        sizes = [one.numel() * one.element_size() for one in new]
        self.num_bytes = max(self.num_bytes, *sizes, 0)
        return result


def losses() -> dict[str, Work]:
    """Head and loss, forward and backward."""
    hidden, head = (
        torch.randn(NUM_TOKENS, WIDTH, requires_grad=True),
        torch.randn(VOCABULARY, WIDTH) * 0.02,
    )
    head.requires_grad_()
    labels = torch.randint(0, VOCABULARY, (NUM_TOKENS,))

    def run(loss: Callable[[], Tensor]) -> Work:
        return lambda: torch.autograd.grad(loss(), (hidden, head))

    return {
        "F.cross_entropy": run(
            lambda: F.cross_entropy(F.linear(hidden, head), labels, reduction="sum")
        ),
        "whole logits, z-loss": run(
            lambda: (
                cross_entropy_sum(F.linear(hidden, head), labels, z_coefficient=1e-4).objective_sum
            )
        ),
        "chunks of 128, z-loss": run(
            lambda: (
                linear_cross_entropy_sum(
                    hidden, head, labels, z_coefficient=1e-4, chunk_tokens=128
                ).objective_sum
            )
        ),
    }


def clips() -> dict[str, Work]:
    """200 gradients of 64 k elements."""
    parameters = [nn.Parameter(torch.empty(256, 256)) for _ in range(200)]
    for parameter in parameters:
        parameter.grad = torch.randn(256, 256)
    return {
        "torch clip_grad_norm_": lambda: nn.utils.clip_grad_norm_(parameters, 1e9),
        "global clip": lambda: clip_(parameters, 1e9),
    }


def attentions() -> dict[str, Work]:
    """Forward and backward of causal attention."""
    q, k, v = (torch.randn(2, HEADS, LENGTH, HEAD_WIDTH, requires_grad=True) for _ in range(3))
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()[None, None]
    norm = QKNorm(HEAD_WIDTH)

    def run(attend: Callable[[], Tensor]) -> Work:
        return lambda: torch.autograd.grad(attend().sum(), (q, k, v))

    return {
        "F.scaled_dot_product_attention": run(
            lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        ),
        "with QK-norm": run(lambda: F.scaled_dot_product_attention(*norm(q, k), v, attn_mask=mask)),
        "soft-capped, written out": run(lambda: capped_attention(q, k, v, mask, cap=50.0)),
    }


def linears() -> dict[str, Work]:
    """Forward and backward of one linear layer."""
    x, weight = (
        torch.randn(NUM_TOKENS, WIDTH, requires_grad=True),
        torch.randn(WIDTH, WIDTH, requires_grad=True),
    )
    scales = fp8.linear_scales(history_len=16)
    return {
        "F.linear": lambda: torch.autograd.grad(F.linear(x, weight).sum(), (x, weight)),
        "FP8 emulated": lambda: torch.autograd.grad(
            fp8.linear(x, weight, scales).sum(), (x, weight)
        ),
    }


def measure(works: dict[str, Work]) -> dict[str, tuple[float, int]]:
    """Median seconds and largest tensor of each, in turn, after one run of each to warm up."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    largest = {}
    for name, work in works.items():
        with Largest() as seen:
            work()
        largest[name] = seen.num_bytes
    for _ in range(NUM_RUNS):
        for name, work in works.items():
            start = time.process_time()
            work()
            taken[name].append(time.process_time() - start)
    return {name: (statistics.median(times), largest[name]) for name, times in taken.items()}


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print("| what | CPU ms | against the first | largest tensor, MB |")
    print("|---|---|---|---|")
    for works in (losses(), clips(), attentions(), linears()):
        seen = measure(works)
        first_s = next(iter(seen.values()))[0]
        for name, (median_s, num_bytes) in seen.items():
            print(
                f"| {name} | {median_s * 1e3:.1f} | {median_s / first_s:.2f} × | "
                f"{num_bytes / 1e6:.2f} |"
            )


if __name__ == "__main__":
    main()
