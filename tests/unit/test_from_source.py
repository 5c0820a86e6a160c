"""What is imported from a run is compiled from the source that was trusted, never from a cache."""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
from pathlib import Path

from command_line import ROOT

PROGRAM = """
import sys
from spiketriage.train.from_source import import_from
import_from([sys.argv[1]])
import job, pack.inside, plain, json
print(job.SAYS, pack.inside.SAYS, plain.SAYS, json.__name__)
"""


def test_bytecode_beside_a_source_that_says_otherwise_is_not_run(tmp_path: Path) -> None:
    code = tmp_path / "code"
    (code / "pack").mkdir(parents=True)
    (code / "pack" / "__init__.py").write_text("", encoding="utf-8")
    _poison(code / "job.py")
    _poison(code / "pack" / "inside.py")
    (tmp_path / "elsewhere").mkdir()
    # A library of the interpreter's own path keeps its cache: only code of the run is compiled.
    library = tmp_path / "elsewhere" / "plain.py"
    _poison(library)
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, str(code)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(library.parent)])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["source", "source", "cached", "json"]
    assert len(list(code.rglob("*.pyc"))) == 2  # and none was written for the package


def _poison(source: Path) -> None:
    """Write a source, and beside it bytecode that passes for its own and says something else."""
    source.write_text("SAYS = 'cached'\n", encoding="utf-8")
    os.utime(source, (1, 1))
    py_compile.compile(str(source), doraise=True)
    source.write_text("SAYS = 'source'\n", encoding="utf-8")
    os.utime(source, (1, 1))
