"""Inputs made after public bug reports come out right, or honest.

They lie beside the checkout and are skipped where they do not; this file holds none of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from reported_cases import CASES, CASES_READ, Case, faults, outcome


@pytest.mark.skipif(not CASES.is_dir(), reason=f"{CASES} is not here")
@pytest.mark.parametrize("case", CASES_READ, ids=lambda case: case.name)
def test_a_reported_case_comes_out_right(case: Case, tmp_path: Path) -> None:
    seen = outcome(case, tmp_path)
    assert not list(faults(case, seen)), seen.text
