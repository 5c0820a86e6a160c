"""Options of the test command that rewrite what is on record instead of comparing with it."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-runbooks", action="store_true", help="rewrite the output shown in runbooks/*.md")
    parser.addoption("--update-surface", action="store_true", help="rewrite fixtures/cli-surface.txt")
