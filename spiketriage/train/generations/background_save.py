"""Saves a generation while training goes on, from a copy of the state that `save` makes.

This module never writes what the training step has changed since, and never has two saves under
way.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import torch.distributed as dist
from torch import Tensor

from spiketriage.errors import SpiketriageError
from spiketriage.train.generations.generation import Provenance, Staged, write
from spiketriage.train.generations.rank_state import RankState, digest_state


class BackgroundSaver:
    """Saves into `generations_folder` one generation after the other, in a thread.

    It is made on every rank, since it makes a gloo group, in which the thread's collectives run, so
    that they never mix with those of the training step. Staging costs one pass over this rank's
    tensors and a copy of them on the host (from an accelerator: untested).
    """

    def __init__(self, generations_folder: Path) -> None:
        self._generations_folder = generations_folder
        self._group: dist.ProcessGroup | None = None
        if dist.is_initialized():
            self._group = dist.new_group(backend="gloo")
        self._thread: threading.Thread | None = None
        self._saved: Path | None = None
        self._error: BaseException | None = None

    def save(self, *, step: int, state: RankState, provenance: Provenance) -> None:
        """Copy `state` and return; waits for the save before, if that has not ended.

        Raises:
            PartialError: the save before failed.
        """
        self.wait()
        copy = _copied(state)
        staged = Staged(step=step, state=copy, digests=digest_state(copy), provenance=provenance)
        self._thread = threading.Thread(
            target=self._write, args=(staged,), name="generation", daemon=False
        )
        self._thread.start()

    def wait(self) -> Path | None:
        """The newest generation saved here, once nothing is under way; None before the first.

        Raises:
            PartialError: it could not be saved; told once.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return self._saved

    def _write(self, staged: Staged) -> None:
        try:
            self._saved = write(self._generations_folder, staged, group=self._group)
        except (
            SpiketriageError,
            RuntimeError,
        ) as error:  # RuntimeError: a peer of the group is gone
            self._error = error


def _copied(state: RankState) -> RankState:
    copies = {}
    for name, held in state.groups.items():
        copies[name] = {key: _host_copy(tensor) for key, tensor in held.items()}
    return replace(
        state, params=copies["params"], optimizer=copies["optimizer"], buffers=copies["buffers"]
    )


def _host_copy(tensor: Tensor) -> Tensor:
    """A copy on the host; a DTensor keeps its placements."""
    held = tensor.detach()
    if held.device.type == "cpu":
        return held.clone()
    return held.cpu()
