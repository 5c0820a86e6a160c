"""Exceptions and last words of a trainer in its output, whatever else stands in the file."""

from pathlib import Path

import pytest

from spiketriage.readers.discover import discover
from spiketriage.readers.events import job_log
from spiketriage.readers.events.folder import read_events

TRACEBACK = """\
{0}Traceback (most recent call last):
{0}  File "train.py", line 9, in <module>
{0}    loop()
{0}  File "loop.py", line 88, in loop
{0}    raise ValueError(message)
{0}ValueError: the mask of sample 7 is empty
"""


def steps(first, last):
    return "".join(f"step {step} | loss 2.{step}\n" for step in range(first, last + 1))


@pytest.fixture
def events_of(tmp_path):
    def read(text, name="train.log"):
        (tmp_path / name).write_text(text)
        return list(read_events(tmp_path))

    return read


@pytest.mark.parametrize("name", ["train.log", "slurm-3.out", "stderr", "console.txt"])
def test_a_traceback_among_other_lines_is_a_fatal_event_in_a_file_of_any_name(events_of, name):
    (event,) = events_of(steps(1, 40) + TRACEBACK.format(""), name)
    assert (event.kind, event.severity, event.step, event.line) == (
        "python-exception",
        "fatal",
        40,
        46,
    )
    assert "the mask of sample 7 is empty" in event.sentence
    assert 'File "loop.py", line 88' in event.sentence


def test_equal_tracebacks_of_many_ranks_are_one_event_with_count_and_first_rank(events_of):
    texts = [TRACEBACK.format(f"[rank{rank}]: ") for rank in (5, 0, 3)]
    (event,) = events_of(steps(1, 3) + "".join(texts))
    assert event.rank == 5
    assert "3 times; ranks 0, 3, 5; first rank 5" in event.sentence


def test_lines_of_other_ranks_inside_a_traceback_do_not_hide_it(events_of):
    ranks = [TRACEBACK.format(f"[rank{rank}]: ").splitlines() for rank in (1, 2)]
    mixed = "\n".join(line for pair in zip(*ranks, strict=True) for line in pair)
    (event,) = events_of(mixed)
    assert "2 times; ranks 1, 2" in event.sentence


def test_what_the_run_outlived_is_an_error_and_not_fatal(events_of):
    (event,) = events_of(steps(1, 5) + TRACEBACK.format("") + steps(6, 9))
    assert event.severity == "error"
    assert "the run went on" in event.sentence


def test_a_restart_from_an_earlier_step_leaves_the_failure_fatal(events_of):
    (event,) = events_of(steps(1, 5) + TRACEBACK.format("") + steps(3, 9))
    assert (event.severity, event.step) == ("fatal", 5)


def test_who_stops_a_run_by_hand_has_not_broken_it(events_of):
    text = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nKeyboardInterrupt\n'
    (event,) = events_of(text)
    assert (event.kind, event.severity) == ("python-exception", "warning")


@pytest.mark.parametrize(
    ("line", "kind", "rank", "device", "host"),
    [
        (
            "AssertionError: Rank 87: found NaN in local grad norm in backward pass before "
            "data-parallel communication collective. Device: 5, node: gpu-11",
            "nan-assertion", 87, "cuda:5", "gpu-11",
        ),
        (
            "ERROR:megatron.core.rerun_state_machine:Rank 3, node gpu-2, device 1, iteration 9: "
            "Unexpected result nan (message='found NaN in local forward loss calculation')",
            "nan-assertion", 3, "cuda:1", "gpu-2",
        ),
        (
            "[rank6]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. "
            "GPU 6 has a total capacity of 79.1 GiB",
            "out-of-memory", 6, "cuda:6", "",
        ),
        ("RuntimeError: CUDA error: device-side assert triggered", "cuda-error", None, "", ""),
        (
            "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably "
            "exploding.",
            "loss-scale-at-minimum", None, "", "",
        ),
        (
            "E0311 09:00:00.1 77 torch/distributed/elastic/multiprocessing/api.py:869] failed "
            "(exitcode: -9) local_rank: 2 (pid: 812) of binary: /usr/bin/python",
            "worker-exit", None, "", "",
        ),
        ("run.sh: line 12: 4711 Killed                  python train.py", "process-killed",
         None, "", ""),
        ("Segmentation fault (core dumped)", "process-killed", None, "", ""),
        ("Loss is nan, stopping training", "nan-loss", None, "", ""),
    ],
)  # fmt: skip
def test_last_words_of_trainers_and_launchers(events_of, line, kind, rank, device, host):
    (event,) = events_of(f"{steps(1, 2)}{line}\n")
    assert (event.kind, event.severity) == (kind, "fatal")
    assert (event.rank, event.device, event.host) == (rank, device, host)


def test_the_exit_code_of_a_worker_is_kept(events_of):
    (event,) = events_of("failed (exitcode: -9) local_rank: 2 (pid: 8) of binary: python\n")
    assert event.code == -9


@pytest.mark.parametrize(
    "line",
    [
        "number of nan iterations:   0 | loss is finite",
        "check_for_nan_in_loss_and_grad ........ True",
        "INFO killed 0 stragglers",
        "Configured memory so that CUDA is never short",
        "Error: see above",
    ],
)
def test_ordinary_lines_are_no_events(events_of, line):
    assert events_of(f"{steps(1, 2)}{line}\n{steps(3, 4)}") == []


def test_an_exception_after_nccl_lines_is_not_left_out(events_of):
    nccl = "gpu017:77:99 [0] NCCL INFO Channel 00/02 : 0 1\n" * 200
    events = events_of(nccl + TRACEBACK.format("[rank4]: "))
    assert [(event.kind, event.rank) for event in events] == [("python-exception", 4)]


def test_a_file_of_such_lines_alone_is_claimed_and_one_with_metrics_is_telemetry_too(tmp_path):
    (tmp_path / "alone.log").write_text(TRACEBACK.format(""))
    line = (
        " iteration {0:8}/ 900 | consumed samples: {0:8} | learning rate: 3.0E-04 | global batch "
        "size: 1 | lm loss: 2.0E+00 | grad norm: 0.4 |\n"
    )
    (tmp_path / "both.log").write_text(
        TRACEBACK.format("") + "".join(line.format(n) for n in range(1, 9))
    )
    discovery = discover(tmp_path)
    assert {claim.path.name for claim in discovery.of("events")} >= {"alone.log"}
    assert "both.log" in {claim.path.name for claim in discovery.of("telemetry")}


def test_an_exception_is_found_in_each_of_a_hundred_thousand_lines_only_once(events_of):
    events = events_of(TRACEBACK.format("") * 15_000)
    assert len(events) == 1
    assert "15000 times" in events[0].sentence


def test_every_public_sample_gives_its_event():
    cases = Path(__file__).parents[3] / "shared" / "cases"
    if not cases.exists():
        pytest.skip("no samples beside this checkout")
    (event,) = job_log.read(cases / "19-megatron-nan-assertion" / "train.log").events
    assert (event.rank, event.device, event.host, event.step) == (114, "cuda:2", "node-14", 1)
    (event,) = job_log.read(cases / "21-deepspeed-scale-at-minimum" / "train.log").events
    assert (event.kind, event.step) == ("loss-scale-at-minimum", 385)
