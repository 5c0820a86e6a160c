"""The training side where nothing but torch and what it needs, numpy, xxhash and safetensors is installed.

A folder of links to these distributions alone stands in for site-packages, and Python starts with
`-I -S`: what is not linked is not there. Nothing is patched.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from bare_loop import BAD_STEP, NUM_STEPS
from recording import ROOT

from spiketriage.readers.telemetry.stores.native import read_segment

ALLOWED = ("torch", "numpy", "xxhash", "safetensors")
# torch itself asks for jinja2, for the templates of its compiler; the training side must not need
# even that.
ABSENT = ("duckdb", "typer", "rich", "pyarrow", "pydantic", "jinja2", "blake3", "pytest")
LOOP = ROOT / "tests" / "bare_loop.py"


def needed(name: str, found: dict[str, Distribution]) -> None:
    """`name` and all that it requires here, extras left out."""
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in found or key in ABSENT:
        return
    try:
        found[key] = distribution(name)
    except PackageNotFoundError:  # of another platform or Python: its marker does not hold here
        return
    for requirement in found[key].requires or ():
        if "extra ==" not in requirement:
            needed(re.split(r"[^\w.-]", requirement, maxsplit=1)[0], found)


def tops(one: Distribution) -> Iterator[Path]:
    """What a distribution puts into site-packages, at the top."""
    for name in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
        yield Path(str(one.locate_file(name)))


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    site = tmp_path / "site"
    site.mkdir()
    found: dict[str, Distribution] = {}
    for name in ALLOWED:
        needed(name, found)
    for one in found.values():
        for path in tops(one):
            if path.exists() and not (site / path.name).exists():
                (site / path.name).symlink_to(path)
    (site / "spiketriage").symlink_to(ROOT / "spiketriage")
    return site


@pytest.mark.slow
def test_the_training_side_records_guards_saves_and_loads_with_torch_and_numpy_alone(
    bare: Path, tmp_path: Path
) -> None:
    command = [
        sys.executable,
        "-I",
        "-S",
        "-W",
        "error",
        str(LOOP),
        str(bare),
        str(tmp_path / "run"),
        *ABSENT,
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["absent"] == list(ABSENT)
    modules = (ROOT / "spiketriage" / "train").rglob("*.py")
    names = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in modules
    }
    assert set(told["imported"]) == names
    assert told["actions"] == [
        "skip" if number == BAD_STEP else "none" for number in range(1, NUM_STEPS + 1)
    ]
    assert told["is_same"] is True
    installed = [path for path in sys.path if path.endswith("site-packages")]
    assert installed
    assert [file for file in told["files"] if file.startswith(tuple(installed))] == []
    segment = read_segment(Path(told["segment"]))
    assert [record.step for record in segment.steps] == list(range(1, NUM_STEPS + 1))
    skipped = segment.steps[BAD_STEP - 1].metrics
    assert (skipped["guard/skipped"], skipped["update/norm"]) == (1.0, 0.0)
