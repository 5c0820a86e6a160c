"""What the mutation harness found, each as small as it can be."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

from command_line import ROOT

from spiketriage.readers.checkpoints.layouts import own_generation, safetensors_files

GENERATION = ROOT / "fixtures" / "own_generation" / "step-000040"


def test_half_a_pair_in_the_metadata_of_safetensors_is_digested(tmp_path: Path) -> None:
    header = json.dumps({"__metadata__": {"note": "\ud800"}}).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    assert safetensors_files.read(path).problems == ()


def test_a_manifest_that_names_a_file_of_5000_characters_is_told(tmp_path: Path) -> None:
    shutil.copytree(GENERATION, tmp_path / "step-000040")
    manifest = tmp_path / "step-000040" / "MANIFEST.json"
    content = json.loads(manifest.read_text())
    content["files"][0]["path"] = "x" * 5000
    manifest.write_text(json.dumps(content))
    facts = own_generation.read(tmp_path / "step-000040")
    assert facts.problems
    assert max(map(len, facts.problems)) < 1500
