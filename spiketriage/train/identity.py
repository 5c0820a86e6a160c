"""The identity that a segment's header carries: code, config, host, threads, library versions.

It never records environment variables: what is not asked for cannot leak.
"""

from __future__ import annotations

import platform
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spiketriage import __version__, digests
from spiketriage.records import Identity


def identify(
    *,
    run: Path,
    code: Path,
    config: Path,
    world_size: int,
    device: str,
    precision: str,
    kernel: str,
    hparams: Mapping[str, Any],
) -> Identity:
    """The identity of this process; `code` is the folder of the deployed trainer.

    Raises:
        EvidenceError: code or config cannot be read.
    """
    return Identity(
        world_size=world_size,
        host=socket.gethostname(),
        device=device,
        num_threads=torch.get_num_threads(),
        precision=precision,
        kernel=kernel,
        deterministic=torch.are_deterministic_algorithms_enabled(),
        code_path=code.relative_to(run).as_posix() if code.is_relative_to(run) else str(code),
        code_digest=digests.of_tree(code),
        config_digest=digests.of_file(config),
        hparams=dict(hparams),
        versions={
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "spiketriage": __version__,
        },
    )
