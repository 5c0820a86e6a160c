"""A 128-bit fingerprint of a tensor, computed where it lies, so that nothing is copied out.

It finds corruption, not tampering, and never equals the XXH3 of the same bytes: compare it with its
own kind only.

Two multilinear hashes over 32-bit lanes in wrapping 64-bit sums: narrower lanes, or weights
without the high half, miss paired sign flips (docs/design-reasons.md#fingerprints). Rows of lanes
are hashed, mixed, and hashed again by row number. The speed on an accelerator, and that its integer
sums wrap as the CPU's do, was not tested: no such machine was at hand.
"""

# R rows, L lanes of a row, S seeds (2).

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

NAME = "multilinear-64x2"
ROW_LANES = 4096
PIECE_ROWS = 1024  # 16 MiB of a tensor at a time; the int64 temporaries are four times that
_SEEDS = (0x243F6A8885A308D3, 0x13198A2E03707344)  # digits of pi
_MASK = (1 << 64) - 1


def fingerprint(tensor: Tensor) -> Tensor:
    """int64 (2,) on the device of `tensor` (any dtype and shape); no synchronisation."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    num_bytes = flat.numel()
    missing = -num_bytes % (4 * ROW_LANES)
    # The length is hashed too: zeros that were there differ from zeros of the padding.
    total_S = torch.tensor([_signed(_mix(seed ^ num_bytes)) for seed in _SEEDS], device=flat.device)
    if missing:
        flat = torch.cat([flat, flat.new_zeros(missing)])
    lanes_RL = flat.view(torch.int32).view(-1, ROW_LANES)
    weights_SL = _weights(str(flat.device))
    for first in range(0, lanes_RL.shape[0], PIECE_ROWS):
        piece_RL = lanes_RL[first : first + PIECE_ROWS].long() & 0xFFFFFFFF
        rows_R = torch.arange(first, first + piece_RL.shape[0], device=flat.device)
        for number, seed in enumerate(_SEEDS):
            hashed_R = _mixed((piece_RL * weights_SL[number]).sum(1))
            total_S[number] += (hashed_R * (_mixed(rows_R + _signed(seed)) | 1)).sum()
    return total_S


@lru_cache(maxsize=8)
def _weights(device: str) -> Tensor:
    rows = [[_signed(_mix(seed + lane)) for lane in range(ROW_LANES)] for seed in _SEEDS]
    return torch.tensor(rows, device=device)


def _mix(value: int) -> int:
    """The splitmix64 finaliser (Steele, Lea and Flood, OOPSLA 2014) in Python integers."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _mixed(values: Tensor) -> Tensor:
    """`_mix` on int64 tensors, whose shifts must be made logical and whose products wrap."""
    values = values + _signed(0x9E3779B97F4A7C15)
    values = (values ^ ((values >> 30) & ((1 << 34) - 1))) * _signed(0xBF58476D1CE4E5B9)
    values = (values ^ ((values >> 27) & ((1 << 37) - 1))) * _signed(0x94D049BB133111EB)
    return values ^ ((values >> 31) & ((1 << 33) - 1))


def _signed(value: int) -> int:
    if value >> 63:
        return value - (1 << 64)
    return value
