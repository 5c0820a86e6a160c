"""What a command may load: `--help` nothing heavy, and the steps that only read never torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import call, commands, environment
from run_folder import write_run

import spiketriage

HEAVY = ("torch", "duckdb", "pyarrow", "rich", "jinja2", "numpy")
HELP = """
import contextlib, io, sys
from spiketriage.cli.main import app
with contextlib.redirect_stdout(io.StringIO()) as shown:
    app(sys.argv[1:], prog_name="spiketriage", standalone_mode=False)
assert "Usage: spiketriage" in shown.getvalue(), shown.getvalue()
print([name for name in {heavy} if name in sys.modules])
"""
STEP = """
import sys
from spiketriage.cli.main import app
code = app(sys.argv[1:], prog_name="spiketriage", standalone_mode=False)
print([name for name in sys.modules if name.split(".")[0] == "torch"], file=sys.stderr)
sys.exit(code)
"""


def python(program: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *words]
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("path", [path for path, _ in commands()], ids=" ".join)
def test_help_of_each_command_loads_nothing_heavy(path: tuple[str, ...], tmp_path: Path) -> None:
    done = python(HELP.format(heavy=HEAVY), *path[1:], "--help", cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_steps_that_only_read_never_load_torch(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", spike_at=100)
    for step in ("freeze", "check", "report", "status"):
        done = python(STEP, step, str(run), cwd=tmp_path)
        assert done.returncode in (0, 1, 6), (step, done.stderr)
        assert done.stdout, (step, done.stderr)
        assert done.stderr.splitlines()[-1] == "[]", step


def test_the_environment_names_the_run_and_a_folder_below_it_finds_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    named = call("status", cwd=tmp_path, env={"SPIKETRIAGE_RUN": str(run)})
    found = call("status", cwd=run / "telemetry")
    bare = call(cwd=run)
    assert named.stdout == found.stdout == bare.stdout
    assert named.stdout.endswith(f"next: spiketriage freeze {run}\n")


def test_every_package_and_module_says_what_it_is_for() -> None:
    root = Path(spiketriage.__file__).parent
    silent = [
        str(path)
        for path in root.rglob("*.py")
        if not path.read_text(encoding="utf-8").startswith('"""')
    ]
    assert silent == []
