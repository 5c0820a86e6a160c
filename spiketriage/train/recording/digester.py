"""Digests of tensors on the host, and whether they are finite: equal bytes are searched once.

It never changes a tensor and never keeps one. The bytes are read in every call, whoever may promise
that nothing has changed them: a version counter does not see what is written through `.data`, by
another library, or by broken memory.

Measured on two cores, 8.4 M parameters in 100 tensors: 2.3 ms for XXH3 over 34 MB (what the memory
gives), 0.5 ms for the dot product behind it. A helping thread gained nothing, although XXH3 lets go
of the GIL: the other core is taken by torch's own thread, which spins for a while after each
operation. Nor did touching tensors in reverse order, or with torch's two threads first, or taking
integer maxima instead of the dot product (twice as slow).
"""

from __future__ import annotations

import torch
from torch import Tensor

from spiketriage.train.recording.tensors import TensorDigest, digest_only, is_finite


class Digester:
    """Remembers by name what it last saw: what a step leaves behind, the next one finds again."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, torch.dtype], TensorDigest] = {}

    def take(self, name: str, tensor: Tensor) -> TensorDigest:
        """Digest and finiteness of a tensor on the host, whose `name` is the same in each stage."""
        key, raw = (name, tensor.dtype), digest_only(tensor)
        seen = self._seen.get(key)
        if seen is None or seen.digest != raw:
            seen = self._seen[key] = TensorDigest(digest=raw, finite=is_finite(tensor))
        return seen
