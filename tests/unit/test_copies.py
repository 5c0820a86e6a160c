"""Copies of evidence stay within the free space, and a refused or failed one leaves nothing."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from spiketriage.errors import EvidenceError
from spiketriage.evidence.collect import stream_copy


def test_a_sparse_log_larger_than_the_disk_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    source, folder = tmp_path / "x.log", tmp_path / "copies"
    folder.mkdir()
    source.touch()
    size_bytes = shutil.disk_usage(folder).total + 1
    os.truncate(source, size_bytes)
    with pytest.raises(EvidenceError, match=f"not copied: {size_bytes} bytes"):
        stream_copy(source, folder / "x.log", ())
    assert not list(folder.iterdir())


def test_a_source_that_cannot_be_read_leaves_no_draft(tmp_path: Path) -> None:
    source, folder = tmp_path / "source", tmp_path / "copies"
    source.mkdir()
    folder.mkdir()
    with pytest.raises((EvidenceError, OSError)):
        stream_copy(source, folder / "x.log", ())
    assert not list(folder.iterdir())


def test_what_fits_is_copied_with_its_digest(tmp_path: Path) -> None:
    source, target = tmp_path / "x.log", tmp_path / "copy.log"
    source.write_bytes(b"step 1 loss 2.5")
    digest = hashlib.sha256()
    assert stream_copy(source, target, (digest,)) == 15
    assert target.read_bytes() == b"step 1 loss 2.5"
    assert digest.hexdigest() == hashlib.sha256(b"step 1 loss 2.5").hexdigest()
