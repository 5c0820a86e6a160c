"""NCCL and watchdog lines, torchrun's failure block, Slurm's records and lines, alone and mixed in one log."""

from pathlib import Path

import event_logs
import pytest

from spiketriage.errors import EvidenceError
from spiketriage.readers.events import job_log, nccl_log, slurm, torchrun_error
from spiketriage.readers.look import look

FIXTURES = Path(__file__).parents[2] / "fixtures" / "events"


@pytest.fixture
def put(tmp_path):
    def written(text, name="job.log"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return written


def test_a_warning_has_the_rank_of_its_process_in_the_largest_communicator(put):
    warning = nccl_log.read(put(event_logs.NCCL)).events[0]
    assert (warning.kind, warning.rank, warning.device) == ("nccl-warning", 12, "0000:9b:00")
    assert (warning.at, warning.host, warning.line) == ("2026-10-06 07:08:09", "gpu017", 3)
    assert "transport/net_ib.cc:1234" in warning.sentence


def test_a_process_without_init_lines_has_a_device_and_no_rank(put):
    warning = nccl_log.read(put(event_logs.NCCL)).events[1]
    assert (warning.host, warning.device, warning.rank) == ("gpu018", "cuda:0", None)


def test_a_timeout_in_the_middle_of_another_ranks_line_is_found_with_its_own_rank(put):
    timeout = nccl_log.read(put(event_logs.NCCL)).events[2]
    assert (timeout.kind, timeout.severity, timeout.rank, timeout.code) == (
        "collective-timeout",
        "fatal",
        3,
        6463,
    )
    assert timeout.at == "1003 18:37:01.832146912"
    assert "ALLREDUCE" in timeout.sentence


def test_an_uninitialised_counter_is_not_repeated_as_a_number(put):
    facts = nccl_log.read(put(event_logs.NCCL))
    assert facts.events[3].kind == "collective-progress"
    assert "last enqueued NCCL work: 6463" in facts.events[3].sentence
    assert "4611686018427387904" not in facts.events[3].sentence
    assert any("4611686018427387904" in problem for problem in facts.problems)


def test_two_ranks_on_one_line_are_two_timeouts(put):
    one = (
        "[rank{}]:[E1 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={}, "
        "OpType=BROADCAST)"
    )
    facts = nccl_log.read(put(one.format(1, 5) + one.format(2, 6) + "\n"))
    assert [(event.rank, event.code) for event in facts.events] == [(1, 5), (2, 6)]


def test_a_sequence_number_that_counts_nothing_is_no_code(put):
    line = (
        f"[rank1]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum={'9' * 40}, "
        "OpType=X)\n"
    )
    assert [event.code for event in nccl_log.read(put(line)).events] == [None]


def test_torchruns_block_names_the_first_failure_and_the_others(put):
    events = torchrun_error.read(put(event_logs.TORCHRUN)).events
    assert [(e.severity, e.rank, e.host, e.code, e.at) for e in events] == [
        ("error", 9, "gpu018", 1, "2026-10-06_07:08:10"),
        ("fatal", 4, "gpu017", -9, "2026-10-06_07:08:09"),
    ]
    assert "SIGKILL" in events[1].sentence


def test_a_torn_block_still_gives_what_it_has(put):
    torn = event_logs.TORCHRUN[
        : event_logs.TORCHRUN.index("  error_file: <N/A>\n  traceback : Signal")
    ]
    assert torchrun_error.read(put(torn)).events[-1].rank == 4


def test_prefixes_of_a_launcher_do_not_hide_the_block(put):
    text = "".join(f"[default0]:{line}\n" for line in event_logs.TORCHRUN.splitlines())
    assert [event.rank for event in torchrun_error.read(put(text)).events] == [9, 4]


def test_error_json_as_torchelastic_writes_it():
    facts = torchrun_error.read(FIXTURES / "error.json")
    (event,) = facts.events
    assert (event.kind, event.severity, event.rank) == ("worker-exception", "fatal", None)
    assert "RuntimeError: loss is NaN" in event.sentence
    assert event.time_s == float(event.at)
    assert "raise RuntimeError" in facts.identity["traceback"]


@pytest.mark.parametrize(
    "content", ["{", "[1]", '{"message": 3}', '{"message": {"extraInfo": [1]}}', "{}"]
)
def test_error_json_of_another_shape(put, content):
    path = put(content, "error.json")
    try:
        facts = torchrun_error.read(path)
    except EvidenceError:
        return
    assert facts.events == () or facts.problems


def test_error_json_names_attempt_and_local_rank_of_its_folder(tmp_path):
    folder = tmp_path / "attempt_2" / "5"
    folder.mkdir(parents=True)
    (folder / "error.json").write_text('{"message": "boom"}')
    facts = torchrun_error.read(folder / "error.json")
    assert facts.identity == {"attempt": "2", "local_rank": "5"}
    assert "boom" in facts.events[0].sentence


def test_slurms_own_lines(put):
    events = slurm.read(put(event_logs.SLURM)).events
    assert [(event.kind, event.host) for event in events] == [
        ("slurm-timeout", "gpu017"),
        ("slurm-preempted", "gpu018"),
        ("slurm-node-fail", "gpu017"),
        ("slurm-out-of-memory", ""),
        ("slurm-out-of-memory", "gpu017"),
        ("slurm-failed", "gpu018"),
        ("slurm-node-fail", "gpu019"),
    ]
    assert events[0].at == "2026-10-06T07:08:09"


def test_scontrol_reports_the_job_that_lost_its_node_and_not_the_one_that_ended_well():
    facts = slurm.read(FIXTURES / "scontrol.txt")
    (event,) = facts.events
    assert (event.kind, event.severity, event.at) == (
        "slurm-node-fail",
        "fatal",
        "2026-10-06T07:08:09",
    )
    assert "NodeDown" in event.sentence
    assert facts.identity["Restarts of job 4711"] == "2"


def test_sacct_in_both_spellings_with_steps():
    events = slurm.read(FIXTURES / "sacct.json").events
    assert [(event.kind, event.host, event.time_s, event.code) for event in events] == [
        ("slurm-node-fail", "", 1790003600.0, 0),
        ("slurm-out-of-memory", "gpu018", 1790003599.0, 137),
        ("slurm-timeout", "gpu021", 1790007200.0, None),
    ]


def test_sacct_with_wrong_types_inside_is_facts_and_problems(put):
    content = (
        '{"jobs": [1, {"state": NaN, "time": [], "nodes": 3, "steps": [4, {"state": '
        '{"current": {}}}]}]}'
    )
    facts = slurm.read(put(content, "sacct.json"))
    assert facts.events == ()
    assert "expected an object" in facts.problems[0]


def test_one_pass_over_a_jobs_output_finds_every_kind(put):
    mixed = event_logs.SLURM + event_logs.NCCL + event_logs.TORCHRUN + event_logs.DMESG
    facts = job_log.read(put(mixed))
    kinds = {event.kind for event in facts.events}
    assert {
        "slurm-timeout",
        "collective-timeout",
        "worker-failure",
        "xid",
        "gpu-off-bus",
        "oom-kill",
    } <= kinds
    assert next(event.rank for event in facts.events if event.kind == "nccl-warning") == 12


@pytest.mark.parametrize(
    ("reader", "text"),
    [(nccl_log, event_logs.NCCL), (torchrun_error, event_logs.TORCHRUN), (slurm, event_logs.SLURM)],
)
def test_claims_its_own_and_not_the_others(put, reader, text):
    assert reader.claims(look(put(text))) >= 0.6
    assert reader.claims(look(put("step 1 loss 2.0\n", "train.log"))) == 0.0


def test_a_few_lines_of_slurm_among_others_are_a_jobs_whole_output(put):
    around = "".join(f"epoch {number}\n" for number in range(20))
    seen = look(put(around + event_logs.SLURM, "job.out"))
    assert job_log.claims(seen) > slurm.claims(seen) > 0
    assert job_log.claims(look(put(around + event_logs.SLURM, "job.py"))) == 0
