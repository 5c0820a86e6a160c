"""Digest and finiteness of torch tensors, taken from the bytes as they lie in memory.

This module never changes a tensor and never keeps a reference to one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from spiketriage.digests import raw_of_bytes

_NUMPY_FLOATS = (torch.float32, torch.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDigest:
    """The XXH3-128 of a tensor's contiguous bytes, and whether every element is finite."""

    digest: bytes
    finite: bool


def digest(tensor: Tensor) -> TensorDigest:
    """Digest of `tensor` (any dtype, shape, device); on an accelerator, of its copy here."""
    held = tensor.detach().cpu()
    return TensorDigest(digest=digest_only(held), finite=is_finite(held))


def digest_only(tensor: Tensor) -> bytes:
    """The 16 raw bytes alone, of a tensor on the host."""
    return raw_of_bytes(_array(tensor.detach()).data)


def is_finite(tensor: Tensor) -> bool:
    """Whether every element of a tensor on the host is finite; integers always are.

    A tensor whose squares sum to a finite number is finite, which costs half of looking at each
    element; the dot product overflows for finite values above 1e19 (float32), and only then is each
    one looked at.
    """
    held = tensor.detach()
    if held.dtype in _NUMPY_FLOATS:
        array = _array(held)
        # An overflow here means only that each element is looked at.
        with np.errstate(all="ignore"):
            return math.isfinite(np.dot(array, array)) or bool(np.isfinite(array).all())
    if not (held.is_floating_point() or held.is_complex()):
        return True
    if held.is_complex():
        held = torch.view_as_real(held)
    if held.dtype.itemsize == 1:
        held = held.float()  # torch has no isfinite for 8-bit floats
    return bool(torch.isfinite(held).all().numpy())


def hex_digests(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Hex digest of every named tensor."""
    return {name: digest(tensor).digest.hex() for name, tensor in tensors.items()}


def _array(held: Tensor) -> np.ndarray[Any, Any]:
    """A tensor's contiguous memory on the host, in its dtype where numpy has it, else as bytes."""
    held = held.contiguous()
    if held.dtype in _NUMPY_FLOATS:
        array: np.ndarray[Any, Any] = held.numpy()
    else:
        array = held.reshape(-1).view(torch.uint8).numpy()
    return array.reshape(-1)


def local_key(name: str, value: Tensor) -> str:
    """The name of this rank's piece of a tensor in the chain; equal pieces share it.

    A DTensor's local shard is `<name>@<mesh dim>=<coordinate>,…`, with one term for each mesh
    dimension along which it is sharded or partial; replicas hold the same piece and have the same
    name, so that ranks can be compared.
    """
    if is_dtensor(value):
        return f"{name}{_place(value)}"
    return name


def local_part(value: Tensor) -> Tensor:
    """This rank's shard of a DTensor, or the tensor itself."""
    if not is_dtensor(value):
        return value
    part: Tensor = value.to_local()  # type: ignore[attr-defined]
    return part


def is_dtensor(value: Tensor) -> bool:
    """Whether `value` is a DTensor, asked by its attributes: importing the class costs a second."""
    if type(value) is Tensor or type(value) is Parameter:
        return False
    return (
        hasattr(value, "placements")
        and hasattr(value, "device_mesh")
        and hasattr(value, "to_local")
    )


def _place(value: Tensor) -> str:
    mesh, placements = value.device_mesh, value.placements  # type: ignore[attr-defined]
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return "@outside"
    names = mesh.mesh_dim_names or tuple(f"dim{dim}" for dim in range(mesh.ndim))
    terms = []
    for name, place, how in zip(names, coordinate, placements, strict=True):
        if not how.is_replicate():
            terms.append(f"{name}={place}")
    if terms:
        return f"@{','.join(terms)}"
    return ""
