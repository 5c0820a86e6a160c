"""The native generation: a folder whose `MANIFEST.json` lists every file and field, and whose `COMPLETE` comes last.

`COMPLETE` holds the digest of the manifest; this module describes the files and never reads a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from spiketriage.records import FileEntry, Manifest

SCHEMA = "spiketriage.generation/1"
MANIFEST_NAME = "MANIFEST.json"
COMPLETE_NAME = "COMPLETE"


def generation_name(step: int) -> str:
    """Folder name of the generation of `step`."""
    return f"step-{step:06d}"


def params_file(rank: int) -> str:
    """Safetensors file with this rank's parameters."""
    return f"params.rank-{rank:05d}.safetensors"


def optimizer_file(rank: int) -> str:
    """Safetensors file with this rank's optimizer tensors, named `<parameter>/<moment>`."""
    return f"optimizer.rank-{rank:05d}.safetensors"


def state_file(rank: int) -> str:
    """JSON file with this rank's scheduler, scaler, RNG and data cursor."""
    return f"state.rank-{rank:05d}.json"


def to_json(manifest: Manifest) -> dict[str, Any]:
    """The manifest as the JSON object that is written to disk."""
    return {"schema": SCHEMA, **asdict(manifest)}


def from_json(value: Mapping[str, Any]) -> Manifest:
    """The manifest from its JSON object.

    Raises:
        ValueError, KeyError, TypeError: the object is not a manifest of this schema.
    """
    if value.get("schema") != SCHEMA:
        raise ValueError(f"schema {value.get('schema')!r}, expected {SCHEMA!r}")
    fields = {key: item for key, item in value.items() if key != "schema"}
    fields["files"] = tuple(FileEntry(**entry) for entry in fields["files"])
    manifest = Manifest(**fields)
    if not isinstance(manifest.step, int) or not isinstance(manifest.fields, dict):
        raise TypeError("step must be an integer and fields an object")
    return manifest
