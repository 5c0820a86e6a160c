"""Ten thousand mutants of the fixtures, shared out among all readers: each is read or refused."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from command_line import ROOT, environment

from spiketriage.readers.discover import kinds

MEMBERS = sorted(f"{kind}:{member.NAME}" for kind, members in kinds().items() for member in members)
NUM_MUTANTS = 10_000


def campaign(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzz.mutants", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )


@pytest.fixture(scope="module")
def printed() -> str:
    done = campaign("--mutants", str(NUM_MUTANTS), "--seed", "tests", "--workers", "1")
    assert done.stderr == ""
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("member", MEMBERS)
def test_every_mutant_of_a_fixture_is_read_or_refused(member: str, printed: str) -> None:
    """Nothing else: no foreign exception, no abort, no bad sentence, nothing written or run."""
    (row,) = re.findall(rf"^\| {member} \| (.*) \|$", printed, re.MULTILINE)
    num_mutants, num_read, num_refused, *others = map(int, row.split(" | "))
    assert num_mutants >= NUM_MUTANTS // len(MEMBERS)
    assert num_read + num_refused == num_mutants, printed.partition("| reader |")[0]
    assert others == [0, 0, 0, 0, 0]


@pytest.mark.slow
def test_a_mutant_is_the_same_whenever_it_is_made() -> None:
    """The outcome of each of these follows from its number and the seed alone."""
    whole = campaign("--mutants", "114", "--seed", "x", "--first", "500")
    parts = [
        campaign("--mutants", "57", "--seed", "x", "--first", first) for first in ("500", "557")
    ]
    assert counts(whole.stdout) == sum_of(*(counts(part.stdout) for part in parts))


def counts(printed: str) -> list[int]:
    (row,) = re.findall(r"^\| all \| (.*) \|$", printed, re.MULTILINE)
    return list(map(int, row.split(" | ")))


def sum_of(first: list[int], second: list[int]) -> list[int]:
    return [one + other for one, other in zip(first, second, strict=True)]
