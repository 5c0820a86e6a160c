"""The identity in a segment's header: code, config, data, device, placement, versions, environment.

It records no environment variable outside `ALLOWED`, since what is not asked for cannot leak, and
of a credential that is asked for its digest.
"""

from __future__ import annotations

import os
import platform
import socket
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from spiketriage import __version__, digests, redaction
from spiketriage.nouns.telemetry import Identity
from spiketriage.train.recording import fingerprint

# Names that change numbers, kernels or placement. None of them is a place where people keep
# secrets.
ALLOWED: tuple[str, ...] = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "NODE_RANK",
    "TORCHELASTIC_RESTART_COUNT",
    "SLURM_JOB_ID",
    "SLURM_NODEID",
    "SLURM_PROCID",
    "SLURM_RESTART_COUNT",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_NCCL_AVOID_RECORD_STREAMS",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_NVLS_ENABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_IB_DISABLE",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NCHANNELS",
    "NVTE_FLASH_ATTN",
    "NVTE_FUSED_ATTN",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO",
    "PYTHONHASHSEED",
)
LIBRARIES = (
    "transformers",
    "accelerate",
    "lightning",
    "deepspeed",
    "megatron",
    "transformer_engine",
    "flash_attn",
)


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
    tokenizer: Path | None = None,
    dataset: Path | None = None,
    mesh: Any = None,
    environment: Iterable[str] = ALLOWED,
) -> Identity:
    """The identity of this process; `code` is the folder of the deployed trainer.

    `tokenizer` is its file or folder, `dataset` the file that pins the data (an index, a manifest),
    `mesh` a `DeviceMesh`, and `environment` the names of variables that may be recorded.

    Raises:
        EvidenceError: code, config, tokenizer or dataset cannot be read.
    """
    place, link_digest = code.resolve(), fingerprint.NAME
    code_path = str(place)
    if place.is_relative_to(run.resolve()):
        code_path = place.relative_to(run.resolve()).as_posix()
    if device.partition(":")[0] == "cpu":
        link_digest = "xxh3-128"
    return Identity(
        world_size=world_size,
        host=socket.gethostname(),
        device=device,
        num_threads=torch.get_num_threads(),
        precision=precision,
        kernel=kernel,
        deterministic=torch.are_deterministic_algorithms_enabled(),
        code_path=code_path,
        code_digest=digests.of_tree(code),
        config_digest=digests.of_file(config),
        hparams=redaction.settings(hparams),
        versions=_versions(),
        tokenizer_digest=_digest_of(tokenizer),
        dataset_digest=_digest_of(dataset),
        environment=redaction.settings(
            {name: os.environ[name] for name in environment if name in os.environ}
        ),
        placement=_placement(device, mesh),
        link_digest=link_digest,
    )


def _versions() -> dict[str, str]:
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "spiketriage": __version__,
    }
    if torch.version.cuda:
        versions["cuda"] = str(torch.version.cuda)
    if torch.cuda.is_available():
        versions["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
        versions["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())  # type: ignore[no-untyped-call]
    # Only what the job has loaded by itself: asking for more would import it.
    for name in LIBRARIES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            versions[name] = version
    return versions


def _digest_of(path: Path | None) -> str:
    if path is None:
        return ""
    if path.is_dir():
        return digests.of_tree(path, "*")
    return digests.of_file(path)


def _placement(device: str, mesh: Any) -> dict[str, Any]:
    """Process, ranks, the accelerator's name and UUID, and this rank's place in the mesh."""
    placed: dict[str, Any] = {"pid": os.getpid(), "machine": platform.machine()}
    if dist.is_available() and dist.is_initialized():
        placed |= {"rank": dist.get_rank(), "backend": str(dist.get_backend())}
    if "LOCAL_RANK" in os.environ:
        placed["local_rank"] = os.environ["LOCAL_RANK"]
    if device.startswith("cuda") and torch.cuda.is_available():
        about = torch.cuda.get_device_properties(torch.device(device))
        placed |= {"accelerator": about.name, "uuid": str(getattr(about, "uuid", ""))}
    if mesh is not None:
        names = mesh.mesh_dim_names or tuple(f"dim{dim}" for dim in range(mesh.ndim))
        placed["mesh"] = dict(zip(names, mesh.mesh.shape, strict=True))
        placed["coordinate"] = dict(zip(names, mesh.get_coordinate() or (), strict=False))
    return placed
