"""nvidia-smi's XML and its nvlink text, and the fabric manager's log."""

from pathlib import Path

import pytest

from spiketriage.errors import EvidenceError
from spiketriage.readers.events import fabric_manager, nvidia_smi, nvidia_smi_nvlink
from spiketriage.readers.look import look

XML = Path(__file__).parents[2] / "fixtures" / "events" / "nvidia_smi.xml"
LINKS = """GPU 0: NVIDIA H100 (UUID: GPU-1)
\t Link 0: 26.562 GB/s
\t Link 1: <inactive>
GPU 1: NVIDIA H100 (UUID: GPU-2)
\t Link 0: 26.562 GB/s
\t Link 1: 26.562 GB/s
\t Link 0: Replay Errors: 3
\t Link 0: Recovery Errors: 0
\t Link 1: CRC Errors: banana
GPU 2: NVIDIA H100 (UUID: GPU-3)
\t Link 0: 26.562 GB/s
"""


def kinds_of(facts, device):
    return sorted((event.kind, event.severity) for event in facts.events if event.device == device)


def test_a_healthy_gpu_has_no_event_and_a_faulty_one_has_each_fault():
    facts = nvidia_smi.read(XML)
    assert kinds_of(facts, "0000:19:00") == []
    assert kinds_of(facts, "0000:3b:00") == [
        ("ecc-correctable", "info"),
        ("ecc-correctable", "info"),
        ("ecc-uncorrectable", "error"),
        ("ecc-uncorrectable", "warning"),
        ("row-remap-pending", "error"),
        ("row-remapped", "warning"),
    ]
    assert kinds_of(facts, "0001:9b:00") == [("pcie-link-width", "warning"), ("slowdown", "error")]


def test_volatile_and_aggregate_counters_are_told_apart():
    identity = nvidia_smi.read(XML).identity
    assert identity["0000:3b:00 volatile dram_uncorrectable"] == "2"
    assert identity["0000:3b:00 aggregate dram_uncorrectable"] == "5"
    assert identity["driver_version"] == "570.158.01"


def test_not_available_is_neither_zero_nor_an_event():
    assert not any("retired_count" in key for key in nvidia_smi.read(XML).identity)


def doctored(tmp_path, *pairs):
    text = XML.read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new, 1)
    path = tmp_path / "smi.xml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("value", ["ERR!", "-1", "9" * 5000, "1e3", "Unknown Error"])
def test_a_counter_that_is_no_count_is_a_problem(tmp_path, value):
    old = "<dram_uncorrectable>0</dram_uncorrectable>"
    facts = nvidia_smi.read(doctored(tmp_path, (old, old.replace("0", value))))
    assert kinds_of(facts, "0000:19:00") == []
    assert any("expected a count" in problem for problem in facts.problems)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("remapped_row_failure>No", "remapped_row_failure>Yes", ("row-remap-failure", "fatal")),
        ("sram_threshold_exceeded>No", "sram_threshold_exceeded>Yes", ("ecc-threshold", "fatal")),
        ("reset_required>No", "reset_required>Yes", ("gpu-reset-required", "fatal")),
        ("pending_retirement>N/A", "pending_retirement>Yes", ("page-retirement-pending", "error")),
        ("retired_count>N/A", "retired_count>4", ("page-retired", "warning")),
        ("hw_slowdown>Not Active", "hw_slowdown>Active", ("slowdown", "error")),
    ],
)
def test_each_flag(tmp_path, old, new, expected):
    assert kinds_of(nvidia_smi.read(doctored(tmp_path, (old, new))), "0000:19:00") == [expected]


def test_gpus_before_ampere_count_single_and_double_bits(tmp_path):
    path = tmp_path / "old.xml"
    path.write_text(
        '<nvidia_smi_log><gpu id="00000000:04:00.0"><ecc_errors><volatile>'
        "<single_bit><device_memory>7</device_memory><total>7</total></single_bit>"
        "<double_bit><device_memory>1</device_memory><total>1</total></double_bit>"
        "</volatile></ecc_errors></gpu></nvidia_smi_log>"
    )
    found = kinds_of(nvidia_smi.read(path), "0000:04:00")
    assert found == [("ecc-correctable", "info"), ("ecc-uncorrectable", "error")]


def test_missing_gpus_are_a_problem(tmp_path):
    facts = nvidia_smi.read(doctored(tmp_path, ("attached_gpus>3", "attached_gpus>8")))
    assert any("expected 8 GPUs" in problem for problem in facts.problems)


def test_a_truncated_file_keeps_the_gpus_before_the_cut(tmp_path):
    text = XML.read_text()
    path = tmp_path / "cut.xml"
    path.write_text(text[: text.index("<gpu id=", text.index("3B:00.0"))])
    facts = nvidia_smi.read(path)
    assert kinds_of(facts, "0000:3b:00")
    assert any("not XML to its end" in problem for problem in facts.problems)


LAUGHS = "".join(f'<!ENTITY l{n + 1} "{f"&l{n};" * 10}">' for n in range(9))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize(
    "entities",
    [
        '<!ENTITY l0 "lol">' + LAUGHS,
        '<!ENTITY x SYSTEM "file:///etc/passwd">',
        '<!ENTITY % p SYSTEM "file:///etc/passwd">',
    ],
)
def test_entities_are_refused(tmp_path, entities, encoding):
    path = tmp_path / "laughs.xml"
    path.write_text(
        f'<?xml version="1.0" encoding="{encoding}"?><!DOCTYPE nvidia_smi_log [{entities}]>'
        "<nvidia_smi_log>&l9;</nvidia_smi_log>",
        encoding=encoding,
    )
    with pytest.raises(EvidenceError, match="no entity declaration"):
        nvidia_smi.read(path)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<other/>",
        b"not xml",
        b"\0" * 1000,
        b"<nvidia_smi_log>" + b"<a>" * 100_000,
        b"<?xml encoding='x'?><a/>",
    ],
)
def test_what_is_not_nvidia_smis_is_refused_in_a_sentence(tmp_path, data):
    path = tmp_path / "x.xml"
    path.write_bytes(data)
    with pytest.raises(EvidenceError):
        nvidia_smi.read(path)


def test_links_that_are_down_count_errors_or_are_missing(tmp_path):
    path = tmp_path / "nvlink.txt"
    path.write_text(LINKS)
    facts = nvidia_smi_nvlink.read(path)
    assert [(event.kind, event.device) for event in facts.events] == [
        ("nvlink-inactive", "gpu:0"),
        ("nvlink-errors", "gpu:1"),
        ("nvlink-missing", "gpu:2"),
    ]
    assert "3 Replay Errors" in facts.events[1].sentence
    assert "banana" in facts.problems[0]
    assert nvidia_smi_nvlink.claims(look(path)) >= 0.9


def test_the_fabric_managers_errors_by_number_and_switch(tmp_path):
    path = tmp_path / "fabricmanager.log"
    path.write_text(
        "[Oct 06 2026 07:08:09] [INFO] [tid 1] multicast group 0 is freed.\n"
        "[Oct 06 2026 07:08:10] [ERROR] [tid 2] detected NVSwitch fatal error 20034 on fid "
        "0 on NVSwitch pci bus id "
        "00000000:86:00.0 physical id 3 port 61\n"
        "[Oct 06 2026 07:08:11] [WARNING] [tid 2] a link is slow\n"
    )
    facts = fabric_manager.read(path)
    assert [(e.kind, e.severity, e.code, e.device) for e in facts.events] == [
        ("nvswitch-error", "fatal", 20034, "0000:86:00"),
        ("fabric-manager", "warning", None, ""),
    ]
    assert facts.identity == {"num_error": "1", "num_info": "1", "num_warning": "1"}
    assert fabric_manager.claims(look(path)) >= 0.9
