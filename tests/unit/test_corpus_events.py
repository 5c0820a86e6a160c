"""The real kernel, fabric-manager and nvlink captures, with what a person reads off them."""

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from spiketriage.readers.events.sources import SOURCES
from spiketriage.readers.look import best, look

CORPUS = Path(__file__).resolve().parents[3] / "shared" / "corpus"
pytestmark = pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus is not on this machine")


def read(name):
    source, confidence = best(SOURCES, look(CORPUS / name))
    facts = source.read(CORPUS / name)
    assert facts.problems == ()
    return source.NAME, confidence, facts


def test_xid119():
    name, confidence, facts = read("hw_dmesg_xid119.log")
    assert (name, confidence) == ("kernel-log", 0.95)
    xids = [event for event in facts.events if event.kind == "xid"]
    assert [(event.code, event.device, event.line) for event in xids] == [
        (119, "0000:9b:00", line) for line in (3, 38, 40, 42, 43)
    ]
    assert [event.at for event in xids[-2:]] == [
        "Sun Feb 23 16:27:12 2025",
        "Sun Feb 23 16:30:13 2025",
    ]
    assert all(event.time_s is None for event in xids)
    assert "(pid 1263500, cache_mgr_main)" in xids[3].sentence
    assert [(event.kind, event.line) for event in facts.events if event.kind != "xid"] == [
        ("gpu-reset-advised", 41)
    ]


def test_xid13_and_oom_kills():
    name, _, facts = read("hw_dmesg_oomkill_iso.log")
    assert name == "kernel-log"
    assert Counter((event.kind, event.code) for event in facts.events) == {
        ("xid", 13): 16,
        ("xid", 43): 1,
        ("oom-kill", None): 6,
        ("oom-reaped", None): 1,
    }
    first = facts.events[0]
    assert first.at == "2025-01-21T04:41:44,283302+00:00"
    assert first.time_s == pytest.approx(
        datetime(2025, 1, 21, 4, 41, 44, 283302, UTC).timestamp(), abs=1e-6
    )
    assert "(pid 2924364, pt_main_thread)" in facts.events[16].sentence
    assert "process 863987 (node)" in facts.events[-2].sentence
    assert "process 123 (httpd)" in facts.events[19].sentence


def test_segfault_in_libnccl():
    _, confidence, facts = read("hw_dmesg_nccl_segfault_iso.log")
    assert confidence >= 0.8
    assert [(event.kind, event.line) for event in facts.events] == [
        ("segfault", 1),
        ("segfault", 2),
    ]
    assert facts.events[0].sentence == (
        "process 2536443 (pt_main_thread): segmentation fault at 7f797fe00000 in libnccl.so.2"
    )


def test_fabric_manager():
    name, _, facts = read("hw_fabricmanager.log")
    assert name == "fabric-manager"
    (event,) = facts.events
    assert (event.severity, event.code, event.device, event.at) == (
        "error",
        12028,
        "0000:86:00",
        "Feb 27 2025 15:10:02",
    )
    assert "port 61" in event.sentence


def test_nvlink():
    name, _, facts = read("hw_nvidia_smi_nvlink_a100.txt")
    assert name == "nvidia-smi-nvlink"
    assert facts.events == ()
    assert facts.identity["num_gpus"] == "8"
    assert {facts.identity[f"gpu:{index} links"] for index in range(8)} == {"12 x 25"}


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.out")), ids=lambda path: path.name)
def test_a_healthy_trainers_log_has_no_event_of_a_gpu_or_of_the_kernel(path):
    source = next(source for source in SOURCES if source.NAME == "job-log")
    kinds = {event.kind for event in source.read(path).events}
    assert not kinds & {
        "xid",
        "gpu-off-bus",
        "oom-kill",
        "segfault",
        "pcie-error",
        "machine-check",
        "kernel-panic",
    }


def test_a_real_jobs_output_says_that_slurm_cancelled_it():
    source = next(source for source in SOURCES if source.NAME == "job-log")
    events = source.read(CORPUS / "meg_base_n4.out").events
    assert [(event.kind, event.severity) for event in events] == [
        ("slurm-cancelled", "warning")
    ] * 2
    assert [("1809579.0" in event.sentence, event.line) for event in events] == [
        (True, 1577),
        (False, 1591),
    ]
