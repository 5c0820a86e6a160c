"""The child in which foreign bytes are read: what comes back, what ends it, and what goes on."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import ROOT, environment
from limited_functions import die, exhaust, fail, process_id

from spiketriage.errors import CorruptFileError, EvidenceError
from spiketriage.readers import limited, limited_answer
from spiketriage.readers.checkpoints.files.torch_zip import read_torch_file
from spiketriage.readers.inert import Stub
from spiketriage.readers.pickles import load

ODD = ROOT / "fixtures" / "torch_save" / "odd.pt"
HANGING = b"\x80\x04})" + b"2\x86" * 60 + b"Ns." + bytes(1 << 26)  # may take seventeen seconds


@pytest.fixture(autouse=True)
def child_that_finds_the_functions_of_the_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    here = f"import sys; sys.path.append({str(ROOT / 'tests')!r}); "
    monkeypatch.setattr(limited, "_PROGRAM", here + limited._PROGRAM)
    limited._CHILD.end()
    yield
    limited._CHILD.end()


def test_a_reader_runs_in_one_child_that_serves_many_files() -> None:
    first = process_id(Path("a"))
    assert first not in (os.getpid(), os.getppid())
    assert process_id(Path("b")) == first


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV, signal.SIGKILL])
def test_a_file_that_ends_the_reader_costs_that_file(number: signal.Signals) -> None:
    with pytest.raises(EvidenceError) as caught:
        die(Path("a file"), number)
    assert caught.value.message == (
        f"a file: cannot be read: reading it ended the reader with {number.name}"
    )
    assert caught.value.hint.startswith("sha256sum 'a file'")
    assert isinstance(process_id(Path("b")), int)


def test_more_memory_than_there_is_costs_that_file() -> None:
    with pytest.raises(EvidenceError, match="a file: cannot be read: it takes more memory than"):
        exhaust(Path("a file"))


def test_errors_of_ours_come_back_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(b"\x80\x02N")
    with pytest.raises(CorruptFileError) as caught:
        read_torch_file(tmp_path / "x.pt")
    assert caught.value.path == str(tmp_path / "x.pt")
    assert caught.value.exit_code == 4
    with pytest.raises(RuntimeError, match="KeyError: 'a bug'"):
        fail(Path("a file"))


def test_a_value_is_the_same_on_both_sides() -> None:
    pickled = b"\x80\x02(cfoo\nBar\n)\x81}X\x01\x00\x00\x00aK\x01sbcfoo\nBar\nK\x02t."
    stub, kind, two = load(pickled, where="test").value
    assert isinstance(stub, Stub)
    assert (stub.qualified, stub.state, two) == ("foo.Bar", {"a": 1}, 2)
    assert kind is type(stub)
    assert read_torch_file(ODD).records


@pytest.mark.parametrize("name", ["os\nsystem", "builtins\neval", "spiketriage.digests\nof_file"])
def test_the_desk_takes_records_and_nothing_that_can_be_called(name: str) -> None:
    with pytest.raises(pickle.UnpicklingError, match="which is no record"):
        limited_answer.decoded(f"c{name}\n(S'true'\ntR.".encode())


def test_an_interrupt_ends_the_command_and_the_child_within_it(tmp_path: Path) -> None:
    (tmp_path / "slow.pt").write_bytes(HANGING)
    command = [sys.executable, "-m", "spiketriage", "inspect", "slow.pt"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        while not children.read_text():
            time.sleep(0.01)
        (guardian,) = map(int, children.read_text().split())
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=60)
    assert running.returncode == 130
    while Path(f"/proc/{guardian}").exists():
        time.sleep(0.01)


def test_threads_and_forks_have_answers_of_their_own() -> None:
    """A fork does not write to the child of the process that it came from."""
    first = process_id(Path("a"))
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda: answers.append(process_id(Path("b")))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [first] * 8
    script = (
        "import os\n"
        "from pathlib import Path\n"
        "from spiketriage.readers.pickles import load\n"
        "load(b'N.', where='x')\n"
        "forked = os.fork()\n"
        "print(load(b'K\\x01.' if forked else b'K\\x02.', where='x').value, flush=True)\n"
        "if forked: os.waitpid(forked, 0)\n"
    )
    told = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
    )
    assert sorted(told.stdout.split()) == ["1", "2"]
    assert told.stderr == ""
