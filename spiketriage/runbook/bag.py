"""Closes a bag: `bagit.txt` and the SHA-256 manifest of every copied file (RFC 8493).

This module never copies evidence; it lists what the collectors copied.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from spiketriage.digests import read_pass
from spiketriage.runbook import layout

MANIFEST = "manifest-sha256.txt"
DECLARATION = "BagIt-Version: 1.0\nTag-File-Character-Encoding: UTF-8\n"


def close(evidence: Path, known: Mapping[str, str]) -> None:
    """Write the manifest and the declaration; files that no collector digested just now are digested here.

    Raises:
        EvidenceError: a copied file cannot be read.
    """
    payload = evidence / layout.PAYLOAD
    for leftover in payload.rglob(".*.partial"):
        leftover.unlink()
    lines = []
    for path in sorted(path for path in payload.rglob("*") if path.is_file()):
        name = path.relative_to(payload).as_posix()
        lines.append(f"{known.get(name) or _sha256(path)}  {layout.PAYLOAD}/{escaped(name)}\n")
    write(evidence / MANIFEST, "".join(lines).encode())
    write(evidence / "bagit.txt", DECLARATION.encode())


def escaped(name: str) -> str:
    """A name as a manifest writes it: line ends, `%` and bytes that are not UTF-8 percent-encoded."""
    return "".join(
        "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogateescape"))
        if character in "%\r\n" or "\udc80" <= character <= "\udcff"
        else character
        for character in name
    )


def write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.partial")
    with draft.open("wb") as stream:
        stream.write(content)
        os.fsync(stream.fileno())
    draft.replace(path)


def _sha256(path: Path) -> str:
    state = hashlib.sha256()
    read_pass(path, (state.update,))
    return state.hexdigest()
