"""Closes a bag: `bagit.txt` and the SHA-256 manifest of every copied file (RFC 8493).

This module never copies evidence; it lists what the collectors copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from spiketriage.digests import sha256_of_file
from spiketriage.durable import write
from spiketriage.evidence import layout

MANIFEST = "manifest-sha256.txt"
DECLARATION = "BagIt-Version: 1.0\nTag-File-Character-Encoding: UTF-8\n"


def close(evidence: Path, known: Mapping[str, str]) -> None:
    """Write the manifest and the declaration.

    Files that no collector digested just now are digested here.

    Raises:
        EvidenceError: a copied file cannot be read.
    """
    payload = evidence / layout.PAYLOAD
    for leftover in payload.rglob(".*.partial"):
        leftover.unlink()
    lines = []
    for path in sorted(path for path in payload.rglob("*") if path.is_file()):
        name = path.relative_to(payload).as_posix()
        lines.append(
            f"{known.get(name) or sha256_of_file(path)}  {layout.PAYLOAD}/{escaped(name)}\n"
        )
    write(evidence / MANIFEST, "".join(lines).encode())
    write(evidence / "bagit.txt", DECLARATION.encode())


def escaped(name: str) -> str:
    """A name as a manifest writes it.

    Line ends, `%` and bytes that are not UTF-8 percent-encoded.
    """
    return "".join(
        "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogateescape"))
        if character in "%\r\n" or "\udc80" <= character <= "\udcff"
        else character
        for character in name
    )
