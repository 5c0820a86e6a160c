"""The recorder under fire.

Killed inside any write, on a disk that stalls, over its budget. Training never waits.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from recording import IDENTITY, ROOT, ring_batches

from spiketriage.readers.telemetry.stores.native import read_segment
from spiketriage.train.recording.batch_signals import record_batch, record_logz
from spiketriage.train.recording.layers import LayerStatistics
from spiketriage.train.recording.observer import Observer
from spiketriage.train.recording.recorder import Recorder
from spiketriage.train.recording.step_recorder import StepRecorder
from spiketriage.wire import telemetry as wire

NUM_KILLS = 100
# One process imports torch and forks the victims: each records small steps and says through a pipe
# which are over.
VICTIMS = """
import os, signal, sys, time
sys.path.insert(0, sys.argv[2])
from pathlib import Path
import torch
from recording import IDENTITY
from spiketriage.train.recording.recorder import Recorder
torch.set_num_threads(1)
tokens = torch.arange(300).view(3, 100)
for line in sys.stdin:
    name, delay_s, padding = line.split()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        # Patience without end: what is tested is the file, not whether this machine was busy.
        recorder = Recorder(Path(sys.argv[1]) / name, rank=0, identity=IDENTITY, patience_s=60, ring_slots=4)
        for number in range(1, 100000):
            with recorder.step(number) as step:
                step.capture(number)
                step.tokens(tokens + number)
                step.ids("x" * int(padding))
                step.tensor("loss", "sum", torch.tensor(float(number)))
            os.write(write, b"%9d" % number)
    os.close(write)
    said = os.read(read, 9)
    time.sleep(float(delay_s))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(read, 65536):
        said = (said + more)[-9:]
    os.close(read)
    print(name, int(said), flush=True)
"""


@pytest.mark.slow
def test_killed_a_hundred_times_at_random_points_everything_before_is_readable(
    tmp_path: Path,
) -> None:
    chooser = random.Random(7)
    orders = "".join(
        f"k{n} {chooser.uniform(0, 0.02):.6f} {chooser.choice((10, 3000, 200000))}\n"
        for n in range(NUM_KILLS)
    )
    command = [sys.executable, "-c", VICTIMS, str(tmp_path), str(ROOT / "tests")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command,
        env=environment,
        input=orders,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    finished = [line.split() for line in done.stdout.splitlines()]
    assert len(finished) == NUM_KILLS
    for name, last in finished:
        segment = read_segment(tmp_path / name / "rank-00000.attempt-000.seg")
        steps = [record.step for record in segment.steps]
        assert steps == list(range(1, len(steps) + 1))
        assert len(steps) - int(last) in (0, 1)  # the step in flight may have been written, or not
        assert segment.num_dropped == 0
        batches, num_torn = ring_batches(tmp_path / name / "rank-00000.attempt-000.ring")
        assert num_torn <= 1  # the slot that was being written
        assert {batch.step for batch in batches} >= set(range(max(1, int(last) - 1), int(last) + 1))
        for batch in batches:
            assert batch.tokens == tuple(range(batch.step, batch.step + 300))


@contextmanager
def drained(descriptor: int) -> Iterator[bytearray]:
    """Everything that comes out of a pipe while the block runs."""
    taken = bytearray()
    os.set_blocking(descriptor, True)

    def read() -> None:
        while part := os.read(descriptor, 1 << 16):
            taken.extend(part)

    reader = threading.Thread(target=read)
    reader.start()
    yield taken
    reader.join()


def test_a_disk_that_takes_nothing_stops_no_step_and_the_file_says_what_it_lacks(
    tmp_path: Path,
) -> None:
    pipe = tmp_path / "stalled.seg"
    os.mkfifo(pipe)
    reader = os.open(
        pipe, os.O_RDONLY | os.O_NONBLOCK
    )  # nobody reads: 64 KiB, then writes hang for good
    recorder = Recorder(
        tmp_path, rank=0, identity=IDENTITY, path=pipe, patience_s=0.01, budget_share=None
    )
    for number in range(1, 501):
        with recorder.step(number) as step:
            step.ids(["x" * 2000, number])
    assert recorder.is_behind
    assert recorder.num_dropped > 100
    with drained(reader) as taken:  # the disk comes back
        recorder.close(timeout_s=60)
    (tmp_path / "read.seg").write_bytes(taken)
    segment = read_segment(tmp_path / "read.seg")
    assert segment.problem == ""
    assert segment.num_dropped == recorder.num_dropped == 500 - len(segment.steps)
    assert [notice.text for notice in segment.notices] == [
        f"{recorder.num_dropped} records or batches were dropped"
    ]


def test_closing_on_a_disk_that_never_comes_back_ends(tmp_path: Path) -> None:
    pipe = tmp_path / "stalled.seg"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with Recorder(tmp_path, rank=0, identity=IDENTITY, path=pipe, patience_s=0.01) as recorder:
        for number in range(1, 100):
            with recorder.step(number) as step:
                step.ids("x" * 2000)
        recorder.close(timeout_s=0.1)
    with drained(reader):
        # Let the thread that was left behind go, so that no other test meets it.
        recorder._queue.close(60)
        os.close(recorder._file.descriptor)


def test_a_record_that_cannot_be_encoded_is_counted_and_costs_no_other(tmp_path: Path) -> None:
    with Recorder(tmp_path, rank=0, identity=IDENTITY) as recorder:
        for number in (1, 2, 3):
            with recorder.step(number) as step:
                step.capture(object() if number == 2 else number)
    segment = read_segment(recorder.path)
    assert [(record.step, record.num_dropped) for record in segment.steps] == [(1, 0), (3, 1)]


def test_over_its_budget_it_thins_and_says_so(tmp_path: Path) -> None:
    tensors = {f"w{n}": torch.full((4096,), float(n)) for n in range(64)}
    with Recorder(tmp_path, rank=0, identity=IDENTITY) as recorder:
        for number in range(1, 61):  # the steps do nothing but record
            with recorder.step(number) as step:
                step.tensors("params_before", tensors)
                step.tensors("params_after", tensors)
                step.log({"loss/sum": 1.0})
    segment = read_segment(recorder.path)
    (notice,) = [notice for notice in segment.notices if notice.kind == "thinning"]
    assert notice.step == 40
    assert "budget 1.00%" in notice.text
    records = {record.step: record for record in segment.steps}
    assert len(records[40].digests) == 128
    thinned = [records[number] for number in range(41, 61)]
    assert {len(record.digests) for record in thinned} == {16}
    assert {record.metrics["recorder/thinning"] for record in thinned} == {1.0}
    assert all(record.metrics["loss/sum"] == 1.0 for record in segment.steps)
    # Every tensor has its turn, and what is digested after a step is digested again before the next
    # one.
    assert len({link.key for record in thinned[:8] for link in record.digests}) == 64
    for earlier, later in pairwise(thinned):
        after = {link.key for link in earlier.digests if link.stage == "params_after"}
        assert after == {link.key for link in later.digests if link.stage == "params_before"}


def test_without_a_budget_nothing_is_left_out(tmp_path: Path) -> None:
    with Recorder(tmp_path, rank=0, identity=IDENTITY, budget_share=None) as recorder:
        for number in range(1, 101):
            with recorder.step(number) as step:
                step.tensors("params_before", {"a": torch.zeros(9), "b": torch.ones(9)})
    segment = read_segment(recorder.path)
    assert {len(record.digests) for record in segment.steps} == {2}
    assert segment.notices == ()


class Counter:
    """Counts the ways in which a thread can wait for one number of a device, in the thread that made it."""

    WAITS = ("item", "__float__", "__int__", "__bool__", "__index__", "tolist", "cpu")

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.is_on = False
        self._thread = threading.get_ident()
        for name in self.WAITS:
            patch.setattr(torch.Tensor, name, self._counted(name, getattr(torch.Tensor, name)))

    def _counted(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(tensor: torch.Tensor, *words: Any, **options: Any) -> Any:
            if self.is_on and threading.get_ident() == self._thread:
                self.calls.append(name)
            return method(tensor, *words, **options)

        return counted

    @contextmanager
    def off(self) -> Iterator[None]:
        self.is_on = False
        yield
        self.is_on = True


def one_step(
    model: torch.nn.Module, optimizer: Any, observer: Observer, step: StepRecorder, counter: Counter
) -> None:
    observer.begin(step)
    out = model(torch.randn(4, 8))  # counted too: the hooks of the layers run in it
    with counter.off():
        out.square().sum().backward()
    observer.local_gradients(step)
    norm = observer.reduced_gradients(step)
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm)
    observer.clipped(step, norm, 1.0)
    step.log({"loss/sum": torch.tensor(3.0), "tokens/valid": torch.tensor(7)})
    with counter.off():
        optimizer.step()
    observer.updated(step)
    optimizer.zero_grad()


def test_a_recorded_step_asks_no_tensor_for_its_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(25)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    counter = Counter(monkeypatch)
    with Recorder(tmp_path, rank=0, identity=IDENTITY, budget_share=None) as recorder:
        observer = Observer(model.named_parameters(), optimizer, recorder=recorder)
        layers = LayerStatistics({str(at): layer for at, layer in enumerate(model)}, recorder)
        ids, valid = torch.arange(12).view(3, 4), torch.ones(3, 4, dtype=torch.bool)
        for number in (1, 2, 3):
            counter.is_on = True
            with recorder.step(number) as step:
                step.capture({"position": number})
                step.tokens(ids)
                one_step(model, optimizer, observer, step, counter)
                layers.record(step)
                record_batch(step, ids, ids, valid, vocabulary=12)
                record_logz(step, ids.float(), valid)
                step.series("loss/per_sample", torch.ones(3))
            counter.is_on = False
    float(torch.tensor(1.0))  # the counter counts
    counter.is_on = True
    float(torch.tensor(1.0))
    assert counter.calls == ["__float__"]
    record = read_segment(recorder.path).steps[-1]
    assert (record.metrics["loss/sum"], record.metrics["tokens/valid"]) == (3.0, 12.0)
    assert (len(record.series["activations/rms"]), record.metrics["logz/max"]) == (25, 11.0)
    assert len(record.digests) == 50 * (4 + 3)


@pytest.mark.slow
def test_a_step_that_never_ends_is_in_the_file_while_it_hangs(tmp_path: Path) -> None:
    with (
        Recorder(tmp_path, rank=0, identity=IDENTITY, stall_after_s=0.01) as recorder,
        recorder.step(1) as step,
    ):
        step.ids(1)
        step.tensor("local_gradient", "w", torch.zeros(3))
        while not (notices := read_or_nothing(recorder.path)):
            signal.pthread_sigmask(signal.SIG_BLOCK, [])  # hang, as a collective does
    assert notices[0].step == 1
    assert notices[0].data["last_stage"] == "local_gradient"


def read_or_nothing(path: Path) -> list[Any]:
    data = path.read_bytes()
    if not data.startswith(wire.MAGIC) or len(data) < 100:
        return []
    return [notice for notice in read_segment(path).notices if notice.kind == "in-flight"]
