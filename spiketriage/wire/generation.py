"""The native generation: a folder with a `MANIFEST.json` of every file, and `COMPLETE` put last.

`COMPLETE` holds the digest of the manifest; this module describes the files and never reads a
tensor.

    step-000040/
      tensors/.metadata __0_0.distcp …   torch.distributed.checkpoint; keys made by `tensor_key`
      rank-00000.json …                  no tensors: scheduler, scaler, guard, RNG, data cursor
      MANIFEST.json COMPLETE
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from spiketriage.nouns.checkpoint import Manifest
from spiketriage.nouns.file import FileEntry

SCHEMA = "spiketriage.generation/2"
MANIFEST_NAME = "MANIFEST.json"
COMPLETE_NAME = "COMPLETE"
PINNED_NAME = "PINNED"  # an operator's `touch`: retention leaves the generation alone
BESIDE = frozenset(
    {MANIFEST_NAME, COMPLETE_NAME, PINNED_NAME}
)  # files that a manifest does not list
TENSORS = "tensors"
SUPERSEDED = "superseded"  # where a generation goes whose step is saved again
GROUPS: Mapping[str, str] = {
    "params": "model.",
    "optimizer": "optimizer.state.",
    "buffers": "buffers.",
}
MAX_NAMED = 3
_NAME = re.compile(r"step-(\d{1,18})")


def generation_name(step: int) -> str:
    """Folder name of the generation of `step`."""
    return f"step-{step:06d}"


def step_of(name: str) -> int | None:
    """The step in the name of a generation's folder; None for any other name."""
    named = _NAME.fullmatch(name)
    if named:
        return int(named[1])
    return None


def rank_file(rank: int) -> str:
    """JSON file with what this rank holds beside tensors."""
    return f"rank-{rank:05d}.json"


def rank_name(rank: int) -> str:
    """This rank's name in a manifest."""
    return f"rank-{rank}"


def tensor_key(group: str, name: str) -> str:
    """Key of a tensor in the DCP folder, as torch's own state dictionaries spell it.

    The moment `<parameter>/<moment>` of the optimizer is `optimizer.state.<parameter>.<moment>`.
    """
    if group == "optimizer":
        parameter, _, moment = name.rpartition("/")
        name = f"{parameter}.{moment}"
    return GROUPS[group] + name


def group_and_name(key: str) -> tuple[str, str] | None:
    """The group and name that `tensor_key` made `key` of; None for a key of somebody else."""
    for group, prefix in GROUPS.items():
        if key.startswith(prefix):
            name = key.removeprefix(prefix)
            if group == "optimizer":
                parameter, _, moment = name.rpartition(".")
                name = f"{parameter}/{moment}"
            return group, name
    return None


def to_json(manifest: Manifest) -> dict[str, Any]:
    """The manifest as the JSON object that is written to disk.

    What a rank shares with the first is told once.
    """
    value = {"schema": SCHEMA, **asdict(manifest)}
    first = manifest.tensors.get(rank_name(0), {})
    for rank, groups in manifest.tensors.items():
        if rank != rank_name(0):
            shared = (name for name, tensors in groups.items() if tensors == first.get(name))
            value["tensors"][rank] |= dict.fromkeys(shared, rank_name(0))
    return value


def from_json(value: Mapping[str, Any]) -> Manifest:
    """The manifest from its JSON object.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: the object is not a manifest of this
        schema.
    """
    if value.get("schema") != SCHEMA:
        raise ValueError(f"schema {value.get('schema')!r}, expected {SCHEMA!r}")
    fields = {key: item for key, item in value.items() if key != "schema"}
    fields["files"] = tuple(FileEntry(**entry) for entry in fields["files"])
    first = fields["tensors"].get(rank_name(0), {})
    fields["tensors"] = {
        rank: {name: first[name] if held == rank_name(0) else held for name, held in groups.items()}
        for rank, groups in fields["tensors"].items()
    }
    fields["nonfinite"] = {rank: tuple(names) for rank, names in fields["nonfinite"].items()}
    manifest = Manifest(**fields)
    if not isinstance(manifest.step, int) or not isinstance(manifest.fields, dict):
        raise TypeError("step must be an integer and fields an object")
    return manifest


def rank_disagreements(manifest: Manifest) -> tuple[str, ...]:
    """A sentence for each rank whose parameters are not what the first holds under the same name.

    A piece of a sharded tensor has a name of its own (`<name>@<mesh dimension>=<coordinate>`), so
    that what two ranks call alike is meant to be alike.
    """
    held = {rank: groups.get("params", {}) for rank, groups in manifest.tensors.items()}
    first = held.get(rank_name(0), {})
    wrong = {
        rank: sorted(n for n, digest in own.items() if first.get(n, digest) != digest)
        for rank, own in held.items()
    }
    return tuple(
        f"{manifest.generation}: ranks disagree: params of {rank} differ from "
        f"{rank_name(0)} (tensor {_some(names)})"
        for rank, names in wrong.items()
        if names
    )


def _some(names: list[str]) -> str:
    return f"{', '.join(names[:MAX_NAMED])}{' …' if len(names) > MAX_NAMED else ''}"
