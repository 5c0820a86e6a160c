"""The command line is a promise.

Every command and option is on record in `fixtures/cli-surface.txt`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import commands, surface

from spiketriage.cli.entry import command_name

FROZEN = Path(__file__).parents[2] / "fixtures" / "cli-surface.txt"
RUNBOOK = ("freeze", "hash", "check", "replay", "branch", "bisect", "report")


def test_commands_and_options_are_those_on_record(request: pytest.FixtureRequest) -> None:
    seen = "".join(f"{line}\n" for line in surface())
    if request.config.getoption("--update-surface"):
        FROZEN.write_text(seen, encoding="utf-8")
    assert FROZEN.read_text(encoding="utf-8") == seen, "wanted? then: pytest --update-surface"


def test_the_steps_of_the_runbook_come_in_its_order() -> None:
    commands = [line.split()[1] for line in surface() if len(line.split()) > 1]
    assert [name for name in commands if name in RUNBOOK] == list(RUNBOOK)


def test_every_command_goes_by_its_own_name() -> None:
    for path, _ in commands():
        words = path[1:]
        assert command_name([*words, "--json"]) == ("-".join(words) or "status")


@pytest.mark.parametrize("common", ["--json", "--help"])
def test_every_command_has_the_common_options(common: str) -> None:
    lines = [line for line in surface() if not line.startswith("spiketriage --")]
    assert [line for line in lines if common not in line.split()] == []
