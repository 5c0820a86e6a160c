"""Options of the test command that rewrite what is on record, and the two real runs that tests share.

Each run is rehearsed once a session by the real command; tests read it, and work on a copy or keep incidents elsewhere.
"""

from __future__ import annotations

import pytest
from rehearsed import Rehearsed, rehearse


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-runbooks", action="store_true", help="rewrite the output shown in runbooks/*.md")
    parser.addoption("--update-surface", action="store_true", help="rewrite cli-surface.txt and README's formats")


@pytest.fixture(scope="session")
def bitrot_run(tmp_path_factory: pytest.TempPathFactory) -> Rehearsed:
    """A run whose shards rotted at rest."""
    return rehearse("shard-bitrot", 106, tmp_path_factory.mktemp("first") / "run")


@pytest.fixture(scope="session")
def flip_run(tmp_path_factory: pytest.TempPathFactory) -> Rehearsed:
    """A run in which one bit of a weight flipped."""
    return rehearse("weight-bit-flip", 110, tmp_path_factory.mktemp("second") / "run")
