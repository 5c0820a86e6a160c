"""No pattern of the package costs more than its text is long, whatever somebody wrote there."""

from __future__ import annotations

import subprocess
import sys

import pytest
from command_line import ROOT, environment


@pytest.mark.slow
def test_every_pattern_is_linear_in_the_text() -> None:
    """Each may take three seconds of CPU for 50,000 characters; a quadratic one takes more."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "pattern_cost.py")],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    names = done.stdout.splitlines()
    assert done.returncode == 0, f"{names[-1:]} is not linear, or {done.stderr}"
    assert len(names) > 150
