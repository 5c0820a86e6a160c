"""A sharded checkpoint of MosaicML Composer: a torch DCP folder named `ep{E}-ba{B}`.

This module never believes the `latest` link beside it.
"""

from __future__ import annotations

import re
from pathlib import Path

from spiketriage.nouns.checkpoint import CheckpointFacts
from spiketriage.readers.checkpoints.dcp import layout as dcp
from spiketriage.readers.look import Look

NAME = "composer-sharded"
TELLS = (
    "What torch DCP tells, with the timestamp, schedulers, dataset state and random state that "
    "Composer stores."
)
CANNOT = (
    "More than a lower bound of the world size; no checkpoint that Composer itself wrote was "
    "ever read."
)
_FOLDER = re.compile(r"ep\d+-ba\d+\Z")


def claims(seen: Look) -> float:
    """How sure this is a folder that Composer sharded."""
    if _FOLDER.match(seen.path.name) and dcp.claims(seen):
        return 0.93
    return 0.0


def read(path: Path) -> CheckpointFacts:
    """The checkpoint in folder `path`.

    Raises:
        EvidenceError: it cannot be read, or holds nothing of DCP.
    """
    return dcp.finish(dcp.begin_dcp(path), NAME)
