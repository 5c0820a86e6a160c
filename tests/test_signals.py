"""Ctrl-C and SIGTERM, at any moment of any command: it ends as a shell expects, and leaves nothing behind.

Real commands, on work that is longer than the moment. The commands are those that the program
offers, so that a new one is tried too.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from itertools import cycle
from pathlib import Path

import pytest
from command_line import call, commands
from killing import MARK
from rehearsed import Rehearsed, clean_environment, gone
from test_kill import check_readable, marked

from spiketriage.incident import store

ENDLESS = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t"
SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143}
# What a command is given beside the run; `RUN`, `STORE` and `NEW` stand for folders of the test.
WORDS = {
    "": (),
    "hash": ("hash", "RUN"),
    "verify": ("verify", "RUN", "--deep"),
    "inspect": ("inspect", "RUN/checkpoints", "--deep"),
    "defenses": ("defenses", "RUN"),
    "documents": (
        "documents",
        "RUN/data/index.json",
        "--step",
        "3",
        "--batch",
        "2",
        "--length",
        "8",
    ),
    "sql": ("sql", ENDLESS, "RUN"),
    "rehearse": ("rehearse", "--fault", "healthy", "--out", "NEW"),
    "rehearse list": ("rehearse", "list"),
    "rehearse score": ("rehearse", "score", "--seeds", "1", "--keep", "NEW"),
    "demo": ("demo", "--out", "NEW"),
}
# A person ends these by hand, and then they say what they saw.
ENDED_BY_HAND = {"watch": {0, 1, 5, 130}}
LAST_MOMENT_S = 3.0
# The product's own bound is two seconds, of a processor of its own; this one is of a busy machine.
WITHIN_S = 20.0

pytestmark = pytest.mark.slow


def names() -> list[str]:
    """Every command by its words; the program itself is the empty one."""
    return [" ".join(path[1:]) for path, _ in commands()]


@pytest.fixture(scope="module")
def frozen(bitrot_run: Rehearsed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a real run with an incident as far as its check."""
    run = tmp_path_factory.mktemp("frozen") / "run"
    shutil.copytree(bitrot_run.folder, run)
    for step in ("freeze", "hash", "check"):
        done = call(step, str(run), cwd=run.parent)
        assert done.returncode in (0, 1, 4, 6), done.stderr
    return run


@pytest.mark.parametrize(("name", "sent"), list(zip(names(), cycle(SIGNALS))))
def test_a_signal_ends_every_command_and_leaves_nothing_behind(
    name: str, sent: signal.Signals, frozen: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(frozen, run)
    words = []
    for word in WORDS.get(name, (*name.split(), "RUN")):
        words.append(word.replace("RUN", str(run)).replace("NEW", str(tmp_path / "new")))
    chooser = random.Random(f"{name} {sent.name}")
    moment_s = chooser.uniform(0, LAST_MOMENT_S)
    code, mark = ended(words, run, sent, moment_s, tmp_path / "log")
    while code not in (SIGNALS[sent], -sent):  # it was done before
        assert moment_s > 0.01, (code, (tmp_path / "log").read_text())
        if name in ENDED_BY_HAND and sent == signal.SIGINT:
            assert code in ENDED_BY_HAND[name]
            break
        moment_s /= 2
        code, mark = ended(words, run, sent, moment_s, tmp_path / "log")
    if code != -sent:  # Python itself, which has words of its own while it starts
        assert "Traceback" not in (tmp_path / "log").read_text()
    assert gone(marked(mark), within_s=WITHIN_S), "a process outlived the command"
    check_readable(run)
    with store.find(run, incidents=None, wanted=None).session(("spiketriage", "hash")):
        pass  # nobody holds the lease


def ended(
    words: list[str], run: Path, sent: signal.Signals, moment_s: float, log: Path
) -> tuple[int, str]:
    """Start a command and send it a signal; its exit code, and the mark of all that it started."""
    mark = f"{log}-{time.monotonic_ns()}"
    with (
        log.open("w") as stream,
        subprocess.Popen(
            [sys.executable, "-m", "spiketriage", *words],
            env={**clean_environment(), MARK: mark, "SPIKETRIAGE_RUN": str(run)},
            cwd=log.parent,
            stdin=subprocess.PIPE,
            stdout=stream,
            stderr=stream,
        ) as command,
    ):
        time.sleep(moment_s)
        command.send_signal(sent)
        return command.wait(timeout=WITHIN_S), mark
