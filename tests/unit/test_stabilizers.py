"""The list of stabilizers.

Every file is a member, says what it removes and costs, and is read without torch.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from spiketriage.train import stabilizers
from spiketriage.train.stabilizers import STABILIZERS, Stabilizer

FOLDER = Path(stabilizers.__file__).parent
LIST = """
import sys
from spiketriage.train.stabilizers import STABILIZERS
print(len(STABILIZERS), "torch" in sys.modules)
"""


def test_each_file_of_the_folder_is_a_member_and_each_member_a_file() -> None:
    files = {f"stabilizers.{path.stem}" for path in FOLDER.glob("*.py") if path.stem != "__init__"}
    assert {member.module for member in STABILIZERS} == {*files, "guarding.guard"}
    assert len({member.name for member in STABILIZERS}) == len(STABILIZERS)
    assert [
        member.name
        for member in STABILIZERS
        if member.name != member.name.lower() or "_" in member.name
    ] == []


@pytest.mark.parametrize("member", STABILIZERS, ids=lambda member: member.name)
def test_each_member_says_in_one_sentence_what_it_removes_costs_and_when(
    member: Stabilizer,
) -> None:
    module = importlib.import_module(f"spiketriage.train.{member.module}")
    constants = (module.NAME, module.REMOVES, module.COST, module.WHEN)
    assert constants == (member.name, member.removes, member.cost, member.when)
    for sentence in constants[1:]:
        assert sentence.endswith(".")
        assert ". " not in sentence
    assert module.__doc__
    assert "never" in module.__doc__


def test_the_list_is_read_without_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIST],
        env={"PYTHONPATH": str(Path(stabilizers.__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == f"{len(STABILIZERS)} False\n"
