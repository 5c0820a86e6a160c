"""Imports from a run's code that are compiled from its source, here and now.

A cache of bytecode beside the source could be anybody's and is neither read nor written: what was
trusted is what is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from importlib.abc import PathEntryFinder
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path
from typing import Any


class _Compiling(SourceFileLoader):
    """A loader without a cache: one whose source has no stated time has none (importlib's rule)."""

    def path_stats(self, path: Any) -> Mapping[str, Any]:
        raise OSError(f"{path}: its bytecode is not cached")


def import_from(folders: Iterable[str]) -> None:
    """Put `folders` first on `sys.path`, and compile whatever is imported from below them."""
    folders = list(folders)
    roots = [Path(folder).resolve() for folder in folders]
    find = FileFinder.path_hook(
        (ExtensionFileLoader, EXTENSION_SUFFIXES),
        (_Compiling, SOURCE_SUFFIXES),
        (SourcelessFileLoader, BYTECODE_SUFFIXES),
    )

    def finder(path: str) -> PathEntryFinder:
        place = Path(path).resolve()
        if not any(place.is_relative_to(root) for root in roots):
            raise ImportError(f"{path}: is not code of the run")
        return find(path)

    sys.path_hooks.insert(0, finder)
    sys.path_importer_cache.clear()
    sys.path[:0] = folders
