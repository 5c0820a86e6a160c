"""A tiny run folder that is valid in every byte, written through `wire/`, with damage planted on request.

It never trains anything: numbers are made up, but digests, manifests, index and telemetry agree.
The generation of step S holds the state after step S; attempt 0 ends at step 90, attempt 1 restarts
from 80.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spiketriage import digests
from spiketriage.nouns.checkpoint import Manifest
from spiketriage.nouns.data import Document
from spiketriage.nouns.file import StoredFile
from spiketriage.nouns.telemetry import Link
from spiketriage.train.generations import tensors as generation_tensors
from spiketriage.wire import data_index, generation, telemetry

NUM_RANKS = 2
NUM_STEPS = 120
GENERATIONS = (40, 80, 120)
FIRST_ATTEMPT_ENDS, RESTART_FROM = 90, 80
ROT_FROM = 100  # a rotten document is consumed as rotten from this step on
TENSORS = {"embed.weight": (8, 4), "block.0.weight": (4, 4), "head.weight": (4, 8)}
HPARAMS = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "clip/threshold": 1.0}
SCHEDULE = {
    "kind": "warmup-cosine",
    "peak_lr": 3e-3,
    "floor_lr": 3e-4,
    "warmup_steps": 20,
    "total_steps": 400,
}
TOML = """schema = 1
[run]
id = "tiny"
[trainer]
harness = "trainer.harness:factory"
python_path = ["code/r2"]
[launch]
kind = "torchrun"
nproc_per_node = 2
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plants:
    """What is wrong with the run; the default is a healthy one."""

    spike_at: int | None = None  # loss + 4, gradient norm x 20
    nan_at: int | None = None  # loss and gradient norm are NaN at this step
    missing_complete: str | None = None  # name of a generation
    flipped_byte: str | None = (
        None  # `step-000080/tensors/__0_0.distcp`: the third byte from the end
    )
    nan_tensor: str | None = None  # name of a generation; digests agree, the tensor does not
    disagreeing: str | None = None  # name of a generation whose rank 1 holds other parameters
    rotten_document: str | None = None  # id of a document (`doc-0` … `doc-7`)
    torn_bytes: int = 0  # cut from the end of rank 1's last segment
    missing_rank: int | None = None


def write_run(folder: Path, **plants: Any) -> Path:
    """Write the run and return its folder."""
    plan = Plants(**plants)
    for name in ("data", "checkpoints", "telemetry", "logs", "code/r1", "code/r2"):
        (folder / name).mkdir(parents=True)
    (folder / "spiketriage.toml").write_text(TOML)
    (folder / "config.json").write_text(json.dumps({"hparams": HPARAMS, "schedule": SCHEDULE}))
    (folder / "logs" / "rank-00000.log").write_text("step 1\nstep 2\n")
    for release in ("r1", "r2"):
        (folder / "code" / release / "trainer.py").write_text(f"RELEASE = {release!r}\n")
    documents = _write_data(folder / "data", plan)
    for step in GENERATIONS:
        _write_generation(folder, step, plan)
    for rank in range(NUM_RANKS):
        if rank != plan.missing_rank:
            _write_telemetry(folder, rank, documents, plan)
    return folder


def parameters(step: int) -> dict[str, np.ndarray]:
    """The parameters after `step`, equal on every rank."""
    return {
        name: np.linspace(-1, 1, math.prod(shape), dtype=np.float32).reshape(shape)
        * np.float32(1 + step / 1000)
        for name, shape in TENSORS.items()
    }


def moments(step: int) -> dict[str, np.ndarray]:
    """The optimizer's tensors after `step`."""
    scaled = parameters(step)
    first = {f"{name}/exp_avg": value * np.float32(0.1) for name, value in scaled.items()}
    return first | {f"{name}/exp_avg_sq": value * value for name, value in scaled.items()}


def tensor_digests(tensors: dict[str, np.ndarray]) -> dict[str, str]:
    return {name: digests.of_bytes(value.tobytes()) for name, value in sorted(tensors.items())}


def learning_rate(step: int) -> float:
    if step < 20:
        return 3e-3 * step / 20
    return 3e-4 + (3e-3 - 3e-4) * 0.5 * (1 + math.cos(math.pi * (step - 20) / 380))


def _document_bytes(number: int) -> bytes:
    return (f"document {number} says " * (3 + number)).encode()


def _write_data(folder: Path, plan: Plants) -> dict[str, Document]:
    documents: dict[str, Document] = {}
    shards = []
    for shard in range(2):
        name, blob = f"shard-{shard:05d}.bin", b""
        for number in range(4 * shard, 4 * shard + 4):
            text = _document_bytes(number)
            documents[f"doc-{number}"] = Document(
                id=f"doc-{number}",
                shard=name,
                offset_bytes=len(blob),
                length_bytes=len(text),
                source=("code", "prose")[number % 2],
                digest=digests.of_bytes(text),
            )
            blob += text
        shards.append(StoredFile(path=name, size_bytes=len(blob), digest=digests.of_bytes(blob)))
        (folder / name).write_bytes(blob)
    (folder / "index.json").write_text(json.dumps(data_index.to_json(shards, documents.values())))
    if plan.rotten_document is not None:
        rotten = documents[plan.rotten_document]
        flip_byte(folder / rotten.shard, rotten.offset_bytes + 1)
    return documents


def flip_byte(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(bytes(data))


def _rank_parameters(step: int, rank: int, plan: Plants) -> dict[str, np.ndarray]:
    tensors, name = parameters(step), generation.generation_name(step)
    if plan.nan_tensor == name:
        tensors["block.0.weight"][1, 2] = np.nan
    if plan.disagreeing == name and rank == 1:
        tensors["head.weight"][0, 0] += 1
    return tensors


@lru_cache
def _stored(name: str, step: int, has_nan: bool) -> Mapping[str, bytes]:
    """The files of the tensors of a generation, as torch writes them, by path in it."""
    plan = Plants(nan_tensor=name if has_nan else None)
    arrays = {"params": _rank_parameters(step, 0, plan), "optimizer": moments(step), "buffers": {}}
    groups = {
        group: {key: torch.from_numpy(value) for key, value in held.items()}
        for group, held in arrays.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        generation_tensors.write(Path(folder), groups)
        paths = [path for path in Path(folder).rglob("*") if path.is_file()]
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def _write_generation(folder: Path, step: int, plan: Plants) -> None:
    name = generation.generation_name(step)
    target = folder / "checkpoints" / name
    (target / generation.TENSORS).mkdir(parents=True)
    for path, data in _stored(name, step, plan.nan_tensor == name).items():
        (target / path).write_bytes(data)
    fields: dict[str, dict[str, str]] = {}
    tensors: dict[str, dict[str, dict[str, str]]] = {}
    for rank in range(NUM_RANKS):
        params, state = _rank_parameters(step, rank, plan), moments(step)
        rest = {
            "scheduler": {"step": step},
            "rng": {},
            "cursor": {"position": step * 2 + rank},
            "num_tokens": step * 64,
        }
        rest |= {"scaler": {}, "guard": {}, "is_cursor_global": False}
        (target / generation.rank_file(rank)).write_text(json.dumps(rest))
        tensors[f"rank-{rank}"] = {
            "params": tensor_digests(params),
            "optimizer": tensor_digests(state),
        }
        fields[f"rank-{rank}"] = state_fields(step, rank) | {
            "params": digests.of_mapping(tensors[f"rank-{rank}"]["params"])
        }
    release = "r1" if step < RESTART_FROM + 1 else "r2"
    files = tuple(
        StoredFile(
            path=path.relative_to(target).as_posix(),
            size_bytes=path.stat().st_size,
            digest=digests.tree_of_file(path),
        )
        for path in sorted(target.rglob("*"))
        if path.is_file()
    )
    manifest = Manifest(
        generation=name,
        step=step,
        num_tokens=step * 64,
        world_size=NUM_RANKS,
        files=files,
        fields=fields,
        tensors=tensors,
        hparams=HPARAMS,
        schedule=SCHEDULE,
        scheduler={"step": step},
        code_path=f"code/{release}",
        code_digest=digests.of_tree(folder / "code" / release),
        config_digest=digests.of_file(folder / "config.json"),
        index_digest=digests.of_file(folder / "data" / "index.json"),
    )
    text = json.dumps(generation.to_json(manifest)).encode()
    (target / generation.MANIFEST_NAME).write_bytes(text)
    if plan.missing_complete != name:
        (target / generation.COMPLETE_NAME).write_text(digests.of_bytes(text))
    if plan.flipped_byte is not None and plan.flipped_byte.startswith(name + "/"):
        path = folder / "checkpoints" / plan.flipped_byte
        flip_byte(path, path.stat().st_size - 3)


def state_fields(step: int, rank: int) -> dict[str, str]:
    """Digests by field of a healthy generation or load, as a manifest keeps them for `rank`."""
    return {
        "params": digests.of_mapping(tensor_digests(parameters(step))),
        "optimizer": digests.of_mapping(tensor_digests(moments(step))),
        **{name: digests.of_bytes(name.encode()) for name in ("buffers", "scaler", "guard")},
        "scheduler": digests.of_bytes(b"scheduler %d" % step),
        "rng": digests.of_bytes(b"rng %d %d" % (step, rank)),
        "cursor": digests.of_bytes(b"cursor %d %d" % (step, rank)),
    }


def links() -> tuple[Link, ...]:
    """The links of one step, in chain order."""
    per_tensor = sorted(TENSORS)
    return (
        Link("ids", "all"),
        Link("content", "all"),
        *(Link("batch", f"{key}#0") for key in ("inputs", "labels", "valid", "mask")),
        *(Link("params_before", key) for key in per_tensor),
        Link("activations", "block.0#0"),
        Link("loss", "sum"),
        *(Link("local_gradient", key) for key in per_tensor),
        *(Link("reduced_gradient", key) for key in per_tensor),
        Link("clip_lr", "all"),
        *(Link("optimizer", key) for key in sorted(moments(0))),
        *(Link("params_after", key) for key in per_tensor),
    )


def _link_digest(link: Link, step: int, rank: int) -> bytes:
    if link.stage in ("params_before", "params_after"):
        held = parameters(step - 1 if link.stage == "params_before" else step)[link.key]
        return digests.raw_of_bytes(held.tobytes())
    everywhere = link.stage in ("reduced_gradient", "clip_lr", "optimizer")
    return digests.raw_of_bytes(
        f"{link.stage} {link.key} {step} {-1 if everywhere else rank}".encode()
    )


def _metrics(step: int, attempt: int, plan: Plants) -> dict[str, float]:
    wobble = math.sin(step * 1.7) * 0.01
    loss, norm = 3.0 - 0.005 * step + wobble, 0.8 + 3 * wobble
    if step == plan.spike_at:
        loss, norm = loss + 4, norm * 20
    if step == plan.nan_at:
        loss = norm = math.nan
    lr = learning_rate(step)
    return {
        "loss/sum": loss * 32,
        "loss/mean": loss,
        "tokens/valid": 32.0,
        "tokens/valid_global": 64.0,
        "tokens/total": step * 64.0,
        "grad/norm_local": norm * 0.7,
        "grad/norm": norm,
        "clip/coefficient": min(1.0, 1.0 / norm) if norm == norm else math.nan,
        "update/norm": lr * (20 + 10 * wobble),
        "rms_t/max": 1.0 + wobble,
        "lr": lr,
        **HPARAMS,
        "loss_scale": 1.0,
        "optimizer/num_entries": float(len(TENSORS)),
        "optimizer/step": float(step),
        "scheduler/step": float(step),
        "steps_since_load": float(step if attempt == 0 else step - RESTART_FROM),
        "logz/mean": 6.0 + wobble,
        "time/step_s": 0.1,
    }


def step_record(
    step: int, rank: int, attempt: int, documents: dict[str, Document], plan: Plants
) -> dict[str, Any]:
    """The JSON record of one step."""
    ids = [f"doc-{(step * 3 + rank * 4 + i) % 8}" for i in range(2)]
    content = {name: documents[name].digest for name in ids}
    if plan.rotten_document in content and step >= ROT_FROM:
        rotten = bytearray(_document_bytes(int(plan.rotten_document.removeprefix("doc-"))))
        rotten[1] ^= 0x10
        content[plan.rotten_document] = digests.of_bytes(bytes(rotten))
    metrics = _metrics(step, attempt, plan)
    return {
        "step": step,
        "metrics": metrics,
        "nonfinite": [["loss", "sum"]] if step == plan.nan_at else [],
        "ids": ids,
        "content": content,
        "series": {"loss/per_sample": [metrics["loss/mean"]] * 2},
        "wall_time_s": 1000.0 + step,
    }


def header_frame(rank: int, attempt: int, folder: Path | None = None, **changes: Any) -> bytes:
    """The header frame of a segment."""
    release = "r1" if attempt == 0 else "r2"
    identity = {
        "world_size": NUM_RANKS,
        "host": "node-0",
        "device": "cpu",
        "num_threads": 1,
        "precision": "float32",
        "kernel": "math",
        "deterministic": True,
        "code_path": f"code/{release}",
        "code_digest": digests.of_tree(folder / "code" / release) if folder else "0" * 32,
        "config_digest": digests.of_file(folder / "config.json") if folder else "0" * 32,
        "hparams": HPARAMS,
        "versions": {"torch": "2.13.0"},
    } | changes
    return telemetry.encode_frame(
        telemetry.HEADER,
        telemetry.encode_json(
            {
                "schema": telemetry.SCHEMA,
                "rank": rank,
                "attempt": attempt,
                "started_at": f"2026-11-29T0{attempt}:00:00Z",
                "identity": identity,
            }
        ),
    )


def layout_frame() -> bytes:
    return telemetry.encode_frame(
        telemetry.LAYOUT,
        telemetry.encode_json({"id": 0, "links": [list(link) for link in links()]}),
    )


def step_frame(
    step: int, rank: int, attempt: int, documents: dict[str, Document], plan: Plants
) -> bytes:
    raw = b"".join(_link_digest(link, step, rank) for link in links())
    record = step_record(step, rank, attempt, documents, plan)
    return telemetry.encode_frame(telemetry.STEP, telemetry.encode_step(record, 0, raw))


def load_frame(step: int, rank: int) -> bytes:
    tensors = {
        "params": tensor_digests(parameters(step)),
        "optimizer": tensor_digests(moments(step)),
    }
    record = {
        "step": step,
        "generation": generation.generation_name(step),
        "fields": state_fields(step, rank),
        "tensors": tensors,
        "wall_time_s": 999.0,
    }
    return telemetry.encode_frame(telemetry.LOAD, telemetry.encode_json(record))


def segment_bytes(
    rank: int,
    attempt: int,
    steps: Iterable[int],
    documents: dict[str, Document],
    plan: Plants,
    folder: Path | None,
) -> bytes:
    """A whole segment."""
    parts = [telemetry.MAGIC, header_frame(rank, attempt, folder), layout_frame()]
    if attempt:
        parts.append(load_frame(RESTART_FROM, rank))
    parts += [step_frame(step, rank, attempt, documents, plan) for step in steps]
    return b"".join(parts)


def _write_telemetry(folder: Path, rank: int, documents: dict[str, Document], plan: Plants) -> None:
    first = replace(
        plan, spike_at=None, nan_at=None
    )  # what happened in the abandoned tail is not production
    for attempt, steps, used in (
        (
            0,
            range(1, FIRST_ATTEMPT_ENDS + 1),
            plan if (plan.spike_at or plan.nan_at or 999) <= 80 else first,
        ),
        (1, range(RESTART_FROM + 1, NUM_STEPS + 1), plan),
    ):
        data = segment_bytes(rank, attempt, steps, documents, used, folder)
        if rank == 1 and attempt == 1 and plan.torn_bytes:
            data = data[: -plan.torn_bytes]
        (folder / "telemetry" / telemetry.segment_name(rank, attempt)).write_bytes(data)
