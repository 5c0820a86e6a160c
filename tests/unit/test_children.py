"""What the desk starts runs no code of the run, sees no secret of the shell, and ends with the desk.

Real processes: a run that plants modules, a desk that is killed outright, workers that resist.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from run_folder import write_run

from spiketriage import children

PLANTED = """
import os
with open({marker!r}, "a") as marker:
    marker.write(__file__ + " in " + " ".join(open("/proc/self/cmdline").read().split("\\0")) + "\\n")
raise ImportError("planted")
"""
NAMES = (
    *("json", "xxhash", "numpy", "torch", "typer", "duckdb", "pyarrow", "pydantic", "socket"),
    *("pathlib", "pickle", "rich", "jinja2", "yaml", "safetensors", "concurrent", "sqlite3"),
)
COMMANDS = (
    *(("freeze",), ("hash",), ("check",), ("bisect",), ("report",), ("status",), ("verify",)),
    *(("sql", "SHOW TABLES"), ("inspect", "."), ("defenses", "."), ("triage",), ("--version",)),
)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run that holds modules with the names of those that we import, and the marker they write."""
    folder = tmp_path_factory.mktemp("planted")
    run = write_run(folder / "run", spike_at=110)
    marker = folder / "marker"
    for name in NAMES:
        (run / f"{name}.py").write_text(PLANTED.format(marker=str(marker)), encoding="utf-8")
    return run, marker


@pytest.mark.slow
@pytest.mark.parametrize("path", ["", ":"])
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_command_imports_what_lies_in_the_run(
    planted: tuple[Path, Path], words: tuple[str, ...], path: str, tmp_path: Path
) -> None:
    run, marker = planted
    script = tmp_path / "spiketriage"  # as pip writes it
    script.write_text("from spiketriage.__main__ import start\nstart()\n", encoding="utf-8")
    home = str(Path(children.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, str(script), *words],
        cwd=run,
        env={**os.environ, "PYTHONPATH": f"{home}{path}", "SPIKETRIAGE_QUIET": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert not marker.exists(), marker.read_text(encoding="utf-8")
    assert done.returncode in (0, 1, 3, 5, 6, 7), done.stderr


def test_a_child_is_given_what_decides_numbers_and_no_secret(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    passed = {"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "default", "NCCL_DEBUG": "INFO"}
    held = {
        "HF_TOKEN": "x",
        "WANDB_API_KEY": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "NCCL_SECRET": "x",
        "LD_PRELOAD": "",
        "PYTHONSTARTUP": "x.py",
        "PYTHONPATH": f":relative:{tmp_path}:/elsewhere/lib",
    }
    for name, value in (passed | held).items():
        monkeypatch.setenv(name, value)
    seen = subprocess.run(
        children.python("-c", "import os, sys; print(dict(os.environ)); print(sys.path)"),
        env=children.environment(),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name, value in passed.items():
        assert f"'{name}': '{value}'" in seen
    for name in held.keys() - {"PYTHONPATH"}:
        assert name not in seen
    for path in (str(tmp_path), "/elsewhere/lib", "relative"):
        assert path not in seen


def test_a_child_finds_the_libraries_that_only_the_shell_names(tmp_path: Path) -> None:
    for name in ("modules/numpy", "own/json"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "__init__.py").touch()
    listed = os.pathsep.join(str(tmp_path / name) for name in ("own", "modules", "gone"))
    home = str(Path(children.__file__).parents[1])
    assert children.import_path({"PYTHONPATH": listed}) == [home, str(tmp_path / "modules")]


STUBBORN = """
import os, signal, subprocess, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
pids = [os.getpid()]
away = subprocess.Popen([sys.executable, "-c", "import os, time; os.setsid(); time.sleep(600)"])
pids.append(away.pid)
if os.fork() == 0:  # an orphan in a session of its own
    os.setsid()
    if os.fork():
        os._exit(0)
    with open(sys.argv[1] + ".orphan", "w") as file:
        file.write(str(os.getpid()))
    time.sleep(600)
with open(sys.argv[1], "w") as file:
    file.write(" ".join(map(str, pids)))
sum(range(10 ** 14))  # holds the interpreter, in C
"""
TRIAL = """
import sys
from pathlib import Path
from spiketriage import children
from spiketriage.diagnosis.leash import run_leashed
run_leashed(children.python("-c", sys.argv[1], sys.argv[2]), Path(sys.argv[2] + ".log"), limit_s=60)
"""
READER = """
import sys
from pathlib import Path
from spiketriage.readers import limited
limited._PROGRAM = "import sys; sys.argv[1:] = " + repr(sys.argv[2:]) + chr(10) + sys.argv[1]
limited._CHILD.answer(b"", of=Path("a file"))
"""
COLLECTOR = """
import sys
from pathlib import Path
from spiketriage import children
from spiketriage.evidence import gather
children.python = lambda *words: [sys.executable, "-c", sys.argv[1], sys.argv[2]]
gather.gather(Path(), Path(), ["host"])
"""
TRIAGE = """
import sys
from pathlib import Path
from spiketriage import children
from spiketriage.practice import triaging
children.python = lambda *words: [sys.executable, "-c", sys.argv[1], sys.argv[2]]
triaging.triage(Path(), is_ours=True)
"""
# Every place that starts a process, with what it starts replaced by something that resists.
DESKS = {"trial": TRIAL, "reader": READER, "collector": COLLECTOR, "triage": TRIAGE}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("what", DESKS)
def test_children_that_resist_end_with_the_desk(
    what: str, number: signal.Signals, tmp_path: Path
) -> None:
    note = tmp_path / "pids"
    orphan = tmp_path / "pids.orphan"
    desk = subprocess.Popen(
        [sys.executable, "-c", DESKS[what], STUBBORN, str(note)],
        env={**os.environ, "PYTHONPATH": str(Path(children.__file__).parents[1])},
        stderr=subprocess.DEVNULL,
    )
    until(lambda: note.exists() and note.read_text() and orphan.exists() and orphan.read_text())
    pids = [int(pid) for pid in (note.read_text() + " " + orphan.read_text()).split()]
    assert all(map(is_alive, pids))
    desk.send_signal(number)
    desk.wait(timeout=60)
    until(lambda: not any(map(is_alive, pids)))


STARTS = re.compile(
    r"\b(Popen|ProcessPoolExecutor|multiprocessing|posix_spawn|os\.(fork|exec\w*))\b|"
    r"subprocess\.(run|call|check_\w+|getoutput)"
)
STARTERS = {
    "children.py": "the guarded child itself",
    "guardian.py": "what it guards",
    "train/recording/channels.py": "an alert's program, which outlives the job whose death it tells",
}


def test_every_process_is_started_below_a_guardian() -> None:
    package = Path(children.__file__).parent
    found = set()
    for path in package.rglob("*.py"):
        if STARTS.search(path.read_text(encoding="utf-8")):
            found.add(path.relative_to(package).as_posix())
    assert found == set(STARTERS)


def until(holds: object) -> None:
    assert callable(holds)
    end_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end_s, "it never came about"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_the_exit_code_of_a_guarded_command_is_its_own(tmp_path: Path) -> None:
    for code, program in ((3, "exit 3"), (0, "true"), (128 + 9, "kill -9 $$")):
        child = children.Guarded(["sh", "-c", program])
        child.wait(timeout=60)
        assert child.end() == code, program
