"""How a manifest and an index list a file: by path, size and digest, none of them left out.

This module never looks for the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spiketriage.nouns.file import StoredFile


def file_from_json(entry: Mapping[str, Any]) -> StoredFile:
    """The file that `entry` lists.

    Raises:
        KeyError, TypeError: something is missing, or there is more than a file has.
    """
    if "digest" not in entry:  # the noun can do without one, a list that vouches for files cannot
        raise KeyError("digest")
    return StoredFile(**entry)
