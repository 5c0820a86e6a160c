"""What the recorder writes, read back by the desk's own reader.

Nothing is lost, and a crash costs one step at most.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recording import IDENTITY, ROOT

from spiketriage import digests
from spiketriage.nouns.telemetry import Link
from spiketriage.readers.telemetry.stores.native import read_segment
from spiketriage.train.recording.recorder import Recorder
from spiketriage.wire import telemetry as wire

FOREIGN = """
import sys
from pathlib import Path
import spiketriage.train.generations.generation, spiketriage.train.harness, spiketriage.train.recording.identity
import spiketriage.train.recording.recorder, spiketriage.train.recording.tensors, spiketriage.train.worker
import spiketriage.train.recording.alerts, spiketriage.train.recording.batch_signals, spiketriage.train.recording.ddp
import spiketriage.train.recording.expert_signals, spiketriage.train.recording.fp8_signals
import spiketriage.train.recording.layers, spiketriage.train.recording.mirrors, spiketriage.train.recording.observer
import spiketriage.train.guarding.agree, spiketriage.train.guarding.guard, spiketriage.train.guarding.undo, spiketriage.detect.detector
desk = ("cli", "runbook", "report", "practice", "diagnosis", "incident", "readers")
heavy = {"duckdb", "typer", "rich", "pyarrow", "pydantic", "jinja2", "tensorboard", "wandb"}
print(sorted(heavy & set(sys.modules)), [name for name in desk if f"spiketriage.{name}" in sys.modules])
"""


def record_steps(folder: Path, steps: range, **options: Any) -> Path:
    with Recorder(folder, rank=1, identity=IDENTITY, **options) as recorder:
        for number in steps:
            with recorder.step(number) as step:
                step.ids(["d1", number])
                step.tensor("loss", "sum", torch.tensor(float(number)))
        return recorder.path


def test_everything_that_was_recorded_is_read_back(tmp_path: Path) -> None:
    weight = torch.tensor([[1.0, -2.0], [3.5, 0.0]])
    with Recorder(tmp_path, rank=1, identity=IDENTITY) as recorder:
        recorder.loaded(
            step=6, generation="step-000006", fields={"rng": "aa"}, tensors={"params": {"w": "bb"}}
        )
        with recorder.step(7) as step:
            step.ids({"rows": [["d3", "d1"]]})
            step.content({"d3": digests.of_bytes(b"three"), "d1": digests.of_bytes(b"one")})
            step.tensors("params_before", {"w": weight})
            step.log({"loss/sum": 12.5, "grad/norm": float("inf"), "lr": 1e-3})
            step.series("loss/per_sample", [1.0, float("nan")])
            step.series("loss/per_sample", [2.0])
    segment = read_segment(tmp_path / "rank-00001.attempt-000.seg")
    assert (segment.rank, segment.attempt, segment.problem, segment.torn_bytes) == (1, 0, "", 0)
    assert segment.identity == IDENTITY
    (load,) = segment.loads
    assert (load.step, load.generation, load.fields, load.tensors) == (
        6,
        "step-000006",
        {"rng": "aa"},
        {"params": {"w": "bb"}},
    )
    (record,) = segment.steps
    assert (record.step, record.rank, record.nonfinite) == (7, 1, ())
    assert record.ids == {"rows": [["d3", "d1"]]}
    assert record.content == {"d3": digests.of_bytes(b"three"), "d1": digests.of_bytes(b"one")}
    raw = b"".join(wire.struct.pack("<f", value) for value in (1.0, -2.0, 3.5, 0.0))
    assert record.digests[Link("params_before", "w")] == digests.raw_of_bytes(raw)
    assert [link.stage for link in record.digests] == ["ids", "content", "params_before"]
    assert record.metrics["loss/sum"] == 12.5
    assert record.metrics["grad/norm"] == float("inf")
    assert record.metrics["time/step_s"] >= 0
    assert record.series["loss/per_sample"][0::2] == (1.0, 2.0)
    assert record.series["loss/per_sample"][1] != record.series["loss/per_sample"][1]


def test_the_links_that_hold_a_nan_or_an_infinity_are_named_in_chain_order(tmp_path: Path) -> None:
    with Recorder(tmp_path, rank=0, identity=IDENTITY) as recorder, recorder.step(1) as step:
        step.tensor("activations", "a", torch.tensor([1.0, float("nan")]))
        step.tensor("loss", "sum", torch.tensor(2.0))
        step.tensor("batch", "inputs", torch.tensor([3, 4]))  # integers are always finite
        step.tensor("local_gradient", "w", torch.tensor([float("-inf")]))
    (record,) = read_segment(recorder.path).steps
    assert record.nonfinite == (Link("activations", "a"), Link("local_gradient", "w"))


def test_equal_values_have_equal_digests_however_they_lie_in_memory(tmp_path: Path) -> None:
    square = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    with Recorder(tmp_path, rank=0, identity=IDENTITY) as recorder, recorder.step(1) as step:
        step.tensors(
            "optimizer", {"plain": square, "strided": square.t().contiguous().t(), "other": -square}
        )
    found = read_segment(recorder.path).steps[0].digests
    assert found[Link("optimizer", "plain")] == found[Link("optimizer", "strided")]
    assert found[Link("optimizer", "plain")] != found[Link("optimizer", "other")]


def test_each_digest_is_of_the_bytes_as_they_are_and_a_nan_that_stays_is_named_each_time(
    tmp_path: Path,
) -> None:
    weight = torch.nn.Parameter(torch.ones(4))
    with Recorder(tmp_path, rank=0, identity=IDENTITY) as recorder:
        for number in (1, 2, 3):
            with recorder.step(number) as step:
                step.tensors("params_before", {"w": weight})
                if number == 1:
                    weight.detach()[2] = float("nan")
                step.tensors("params_after", {"w": weight})
            if number == 2:
                seen = weight._version
                weight.data[0] = 7.0  # between two steps, and past torch's own count of changes
                assert weight._version == seen
    first, second, third = read_segment(recorder.path).steps
    before, after = Link("params_before", "w"), Link("params_after", "w")
    assert second.digests[before] == first.digests[after] != first.digests[before]
    assert third.digests[before] != second.digests[after]
    assert [record.nonfinite for record in (first, second, third)] == [
        (after,),
        (before, after),
        (before, after),
    ]


def test_links_may_change_from_step_to_step(tmp_path: Path) -> None:
    with Recorder(tmp_path, rank=0, identity=IDENTITY) as recorder:
        for number, keys in enumerate(("ab", "a", "ab", "abc")):
            with recorder.step(number) as step:
                step.tensors("optimizer", {key: torch.tensor(ord(key)) for key in keys})
    seen = [[link.key for link in record.digests] for record in read_segment(recorder.path).steps]
    assert seen == [["a", "b"], ["a"], ["a", "b"], ["a", "b", "c"]]


def test_each_start_gets_a_segment_of_its_own(tmp_path: Path) -> None:
    paths = [record_steps(tmp_path, range(1, 3)) for _ in range(3)]
    assert [read_segment(path).attempt for path in paths] == [0, 1, 2]
    assert [path.name for path in paths] == [f"rank-00001.attempt-00{n}.seg" for n in range(3)]


def test_a_step_that_raises_leaves_no_record_and_the_next_one_is_whole(tmp_path: Path) -> None:
    with Recorder(tmp_path, rank=0, identity=IDENTITY) as recorder:
        with pytest.raises(ZeroDivisionError), recorder.step(1):
            raise ZeroDivisionError
        with recorder.step(2) as step:
            step.ids(2)
    segment = read_segment(recorder.path)
    assert ([record.step for record in segment.steps], segment.problem) == ([2], "")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return record_steps(tmp_path_factory.mktemp("whole"), range(1, 6)).read_bytes()


@settings(max_examples=40, deadline=None)
@given(place=st.floats(0, 1))
def test_a_segment_cut_anywhere_still_gives_every_step_before_the_cut(
    tmp_path_factory: pytest.TempPathFactory, whole: bytes, place: float
) -> None:
    ends = [
        frame.end for frame in wire.iter_frames(whole) if frame.kind in (wire.HEADER, wire.STEP)
    ]
    cut = ends[0] + int(place * (len(whole) - ends[0]))
    path = tmp_path_factory.getbasetemp() / "cut.seg"
    path.write_bytes(whole[:cut])
    assert [record.step for record in read_segment(path).steps] == list(
        range(1, 1 + sum(e <= cut for e in ends[1:]))
    )


@pytest.mark.slow
def test_a_process_that_is_killed_inside_a_step_loses_that_step_alone(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "import torch\n"
        "from recording import IDENTITY\n"
        "from spiketriage.train.recording.recorder import Recorder\n"
        "from pathlib import Path\n"
        "with Recorder(Path(sys.argv[1]), rank=0, identity=IDENTITY) as recorder:\n"
        "    for number in range(1, 9):\n"
        "        with recorder.step(number) as step:\n"
        "            step.tensor('loss', 'sum', torch.tensor(1.0))\n"
        "            if number == 5:\n"
        "                os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path), str(ROOT / "tests")]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=120, check=False
    )
    assert done.returncode == -9
    segment = read_segment(tmp_path / "rank-00000.attempt-000.seg")
    assert ([record.step for record in segment.steps], segment.torn_bytes) == ([1, 2, 3, 4], 0)


def test_a_disk_that_fails_never_stops_training_and_is_told_by_the_next_record(
    tmp_path: Path,
) -> None:
    recorder = Recorder(tmp_path, rank=0, identity=IDENTITY)
    kept = os.dup(recorder._file.descriptor)
    with recorder.step(1) as step:
        step.ids(1)
    read_only = os.open(os.devnull, os.O_RDONLY)  # writing to it fails, as a lost mount does
    os.dup2(read_only, recorder._file.descriptor)
    for number in (2, 3):
        with recorder.step(number) as step:
            step.ids(number)
    assert recorder.num_dropped == 2
    os.dup2(kept, recorder._file.descriptor)
    with recorder.step(4) as step:
        step.ids(4)
    recorder.close()
    os.close(read_only)
    os.close(kept)
    assert [record.step for record in read_segment(recorder.path).steps] == [1, 4]
    steps = [
        frame for frame in wire.iter_frames(recorder.path.read_bytes()) if frame.kind == wire.STEP
    ]
    layouts = {0: (Link("ids", "all"),)}
    assert [wire.decode_step(frame.payload, layouts)[0]["num_dropped"] for frame in steps] == [0, 2]


def test_a_step_recorded_while_the_disk_failed_does_not_cost_the_steps_after_it(
    tmp_path: Path,
) -> None:
    recorder = Recorder(tmp_path, rank=0, identity=IDENTITY)
    kept = os.dup(recorder._file.descriptor)
    read_only = os.open(os.devnull, os.O_RDONLY)
    os.dup2(read_only, recorder._file.descriptor)
    with recorder.step(
        1
    ) as step:  # the first record with these links, and with it their layout, is lost
        step.ids(1)
    os.dup2(kept, recorder._file.descriptor)
    for number in (2, 3):
        with recorder.step(number) as step:
            step.ids(number)
    recorder.close()
    os.close(read_only)
    os.close(kept)
    segment = read_segment(recorder.path)
    assert ([record.step for record in segment.steps], segment.problem) == ([2, 3], "")


@pytest.mark.slow
def test_a_write_that_the_disk_takes_in_part_does_not_cost_the_steps_after_it(
    tmp_path: Path,
) -> None:
    program = (
        "import resource, signal, sys\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "from recording import IDENTITY\n"
        "from spiketriage.train.recording.recorder import Recorder\n"
        "from pathlib import Path\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "with Recorder(Path(sys.argv[1]), rank=0, identity=IDENTITY) as recorder:\n"
        "    for number in range(1, 7):\n"
        "        size = recorder.path.stat().st_size\n"
        # the disk is full for one step
        "        limit = size + 20 if number == 3 else resource.RLIM_INFINITY\n"
        "        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))\n"
        "        with recorder.step(number) as step:\n"
        "            step.ids(number)\n"
        "print(recorder.num_dropped)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path), str(ROOT / "tests")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    segment = read_segment(tmp_path / "rank-00000.attempt-000.seg")
    assert [record.step for record in segment.steps] == [1, 2, 4, 5, 6]


@pytest.mark.slow
def test_the_training_side_loads_neither_the_desk_nor_its_libraries() -> None:
    command = [sys.executable, "-c", FOREIGN]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout, done.returncode) == ("[] []\n", 0), done.stderr
