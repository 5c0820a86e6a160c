"""Digest and finiteness of torch tensors, taken from the bytes as they lie in memory.

This module never changes a tensor and never keeps a reference to one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from spiketriage.digests import raw_of_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDigest:
    """16 raw bytes of XXH3-128 over a tensor's contiguous bytes, and whether every element is finite."""

    digest: bytes
    finite: bool


def digest(tensor: Tensor) -> TensorDigest:
    """Digest of `tensor` (any dtype, shape, device); on an accelerator this copies to the host first."""
    flat = tensor.detach().contiguous().reshape(-1)
    finite = not flat.is_floating_point() or bool(torch.isfinite(flat).all())
    return TensorDigest(digest=raw_of_bytes(flat.cpu().view(torch.uint8).numpy().tobytes()), finite=finite)


def hex_digests(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Hex digest of every named tensor."""
    return {name: digest(tensor).digest.hex() for name, tensor in tensors.items()}
