"""Closes a bag (RFC 8493): the SHA-256 of every copied file, and of the files that say so.

This module never copies evidence; it lists what the collectors copied.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from spiketriage.digests import sha256_of_file
from spiketriage.durable import write
from spiketriage.evidence import layout

MANIFEST, TAG_MANIFEST = "manifest-sha256.txt", "tagmanifest-sha256.txt"
BAGIT = "bagit.txt"
DECLARATION = "BagIt-Version: 1.0\nTag-File-Character-Encoding: UTF-8\n"


def close(evidence: Path, known: Mapping[str, str]) -> str:
    """Write manifest, declaration and tag manifest; returns the SHA-256 of the last.

    That one digest stands for all: it covers the manifest, which covers every copied file, and the
    telemetry in Parquet. Files that no collector digested just now are digested here.

    Raises:
        EvidenceError: a copied file cannot be read.
    """
    payload = evidence / layout.PAYLOAD
    shutil.rmtree(evidence / layout.DRAFTS, ignore_errors=True)
    for leftover in payload.rglob(".*.partial"):  # of our own files, by `durable.write`
        if leftover.relative_to(payload).as_posix() not in known:
            leftover.unlink()
    lines = []
    for path in sorted(path for path in payload.rglob("*") if path.is_file()):
        name = path.relative_to(payload).as_posix()
        lines.append(
            f"{known.get(name) or sha256_of_file(path)}  {layout.PAYLOAD}/{escaped(name)}\n"
        )
    write(evidence / MANIFEST, "".join(lines).encode())
    write(evidence / BAGIT, DECLARATION.encode())
    tags = []
    for name in (BAGIT, MANIFEST, layout.PARQUET):
        if (evidence / name).is_file():  # a run without telemetry has no Parquet
            tags.append(f"{sha256_of_file(evidence / name)}  {name}\n")
    write(evidence / TAG_MANIFEST, "".join(tags).encode())
    return sha256_of_file(evidence / TAG_MANIFEST)


def escaped(name: str) -> str:
    """A name as a manifest writes it: line ends, `%` and bytes outside UTF-8 percent-encoded."""
    written = ""
    for character in name:
        if character in "%\r\n" or "\udc80" <= character <= "\udcff":
            for byte in character.encode("utf-8", "surrogateescape"):
                written += f"%{byte:02X}"
        else:
            written += character
    return written
