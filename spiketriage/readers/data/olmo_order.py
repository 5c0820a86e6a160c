"""Which instances a training step of OLMo read, from the global indices that OLMo-core writes.

This module never replays a shuffle: without that file the order is not known.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from spiketriage.errors import CorruptFileError, RefusedError
from spiketriage.readers.data import disk
from spiketriage.readers.look import look, look_at_file

INDEX_BYTES = 4  # raw uint32
ORDER = re.compile(
    r"global_indices(?:_chunk\d+)?(?:_epoch(?P<epoch>\d+))?(?:_seed\d+)?_size(?P<size>\d+)\.npy"
)
ORDER_NAME = "global_indices_epoch<E>_seed<S>_size<N>.npy"
_SHOWN = 4


def instances_of_step(
    path: Path,
    step: int,
    global_batch: int,
    /,
    *,
    epoch: int | None = None,
    order: Path | None = None,
) -> tuple[int, ...]:
    """The instances of training step `step`, with `global_batch` counted in instances.

    The first step of the epoch is 1. The instances are a slice of the global indices file that
    OLMo-core writes into its work folder: `order`, or the only one beside the tokens at `path`.

    Raises:
        RefusedError: there is no such file, several fit, or it ends before this step.
        EvidenceError: the file is damaged.
    """
    if step < 1 or global_batch < 1:
        raise RefusedError(f"step {step} with a global batch of {global_batch}: both start at 1")
    where = order if order is not None else _order_beside(path, epoch)
    num_instances = _num_instances(where)
    first, last = (step - 1) * global_batch, step * global_batch
    if last > num_instances:
        wanted = (
            f"places {first} to {last - 1} are wanted, the file orders {num_instances} instances"
        )
        raise RefusedError(f"{where}: {wanted}", hint="a later epoch has a file of its own")
    data = disk.read_range(where, first * INDEX_BYTES, last * INDEX_BYTES, f"order of step {step}")
    return tuple(disk.integers(data, np.dtype("<u4")).tolist())


def _num_instances(where: Path) -> int:
    """How many instances the file orders, by its size, which its name may state too."""
    size_bytes = look_at_file(where).size_bytes
    stated = ORDER.fullmatch(where.name)
    expected = "4 bytes an instance"
    if stated:
        expected = f"4 bytes for each of {stated['size']} instances"
    num_instances, rest = divmod(size_bytes, INDEX_BYTES)
    if rest or (stated and int(stated["size"]) != num_instances):
        raise CorruptFileError(where, "size", expected=expected, seen=f"{size_bytes} bytes")
    return num_instances


def _order_beside(path: Path, epoch: int | None) -> Path:
    folder = path if disk.is_folder(path) else path.parent
    fitting = []
    for name in look(folder).names:
        stated = ORDER.fullmatch(name)
        if stated and (epoch is None or stated["epoch"] == str(epoch)):
            fitting.append(name)
    if len(fitting) == 1:
        return folder / fitting[0]
    if fitting:
        names = ", ".join(fitting[:_SHOWN])
        raise RefusedError(
            f"{folder}: {len(fitting)} orders fit ({names})", hint="name the epoch or the file"
        )
    random = (
        "nanoGPT draws its samples at random and llm.c shuffles from a seed: neither writes "
        "the order"
    )
    hint = f"copy OLMo-core's {ORDER_NAME} from its work folder beside the tokens"
    raise RefusedError(f"{path}: which tokens a step read is not stored: {random}", hint=hint)
