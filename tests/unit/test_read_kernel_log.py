"""Kernel logs: what befell GPUs, processes, PCIe and memory, in every time style."""

from datetime import UTC, datetime

import event_logs
import pytest

from spiketriage.readers.events import kernel_log
from spiketriage.readers.events.kernel_stamp import kernel_line
from spiketriage.readers.events.pci import from_nccl, pci_device
from spiketriage.readers.events.xid import SOURCE, XIDS, explain
from spiketriage.readers.look import look


@pytest.fixture
def read(tmp_path):
    def written(text, name="dmesg.log"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return kernel_log.read(path)

    return written


def test_every_kind_of_message_becomes_one_event_in_order(read):
    facts = read(event_logs.DMESG)
    assert [
        (event.kind, event.severity, event.device, event.code, event.line) for event in facts.events
    ] == [
        ("gpu-off-bus", "fatal", "0000:b3:00", None, 3),
        ("gpu-off-bus", "fatal", "0000:18:00", None, 4),
        ("xid", "fatal", "0009:01:00", 149, 5),
        ("xid", "warning", "0009:01:00", 145, 6),
        ("xid", "fatal", "0009:01:00", 154, 7),
        ("xid", "warning", "0000:03:00", 14, 8),
        ("sxid", "fatal", "0000:06:00", 20034, 9),
        ("pcie-error", "fatal", "0000:81:00", None, 11),
        ("pcie-error", "warning", "0000:81:00", None, 12),
        ("machine-check", "error", "", None, 13),
        ("oom-kill", "error", "", None, 14),
    ]


@pytest.mark.parametrize(
    "message",
    [
        "pcieport 0000:80:01.0: AER: enabled with IRQ 34",
        "pciehp 0000:80:01.0:pcie004: Slot(5): Card present",
        "EDAC MC0: Giving out device to module skx_edac controller Skylake Socket#0 IMC#0",
        "mce: CPU0: Thermal monitoring enabled (TM1)",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01",
        "nvidia-nvswitch0: open (major=510)",
    ],
)
def test_what_a_kernel_says_when_it_boots_is_no_event(read, message):
    facts = read(f"[    1.000000] {message}\n")
    assert (facts.events, facts.problems) == ((), ())


@pytest.mark.parametrize(
    ("message", "kind", "severity"),
    [
        ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0", "machine-check", "warning"),
        ("EDAC MC0: 2 UE memory read error on CPU_SrcID#0_MC#0", "machine-check", "error"),
        ("mce: [Hardware Error]: Machine check events logged", "machine-check", "warning"),
        ("pciehp 0000:80:01.0:pcie004: Slot(5): Link Down", "pcie-link-down", "fatal"),
        ("INFO: task python3:4242 blocked for more than 120 seconds.", "hung-task", "warning"),
        ("Kernel panic - not syncing: Fatal exception", "kernel-panic", "fatal"),
        ("python3 invoked oom-killer: gfp_mask=0xcc0", "oom-invoked", "warning"),
        (
            "traps: python3[77] general protection fault ip:7f sp:7f error:0 in libcuda.so.1[7f+1]",
            "segfault",
            "error",
        ),
        (
            "pcieport 0000:80:01.0: AER: Uncorrected (Non-Fatal) error received: 0000:81:00.0",
            "pcie-error",
            "error",
        ),
        (
            "NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x1 (X) to "
            "0x0 (None)",
            "xid",
            "info",
        ),
    ],
)
def test_each_further_message(read, message, kind, severity):
    assert [
        (event.kind, event.severity) for event in read(f"[    1.000000] {message}\n").events
    ] == [(kind, severity)]


def test_an_xid_line_without_a_number_is_a_problem_and_no_event(read):
    facts = read(event_logs.DMESG)
    assert len(facts.problems) == 1
    assert "line 15" in facts.problems[0]
    assert "xyz, invalid data" in facts.problems[0]


def test_relative_stamps_are_kept_as_written_and_are_no_point_in_time(read):
    event = read(event_logs.DMESG).events[2]
    assert (event.at, event.time_s) == ("171167.620236", None)
    assert any("without a time zone" in note for note in read(event_logs.DMESG).notes)


def test_journal_entries_have_host_and_time(read):
    facts = read(event_logs.JOURNAL)
    assert [(event.code, event.host, event.time_s) for event in facts.events] == [
        (79, "gpu017", 1737434504.283302)
    ]


def test_iso_stamps_with_a_zone_become_unix_time_and_syslog_stamps_do_not(read):
    first, second = read(event_logs.SHORT_ISO).events
    assert first.time_s == datetime(2025, 2, 23, 15, 24, 18, tzinfo=UTC).timestamp()
    assert (first.host, second.host) == ("gpu017", "gpu018")
    assert (second.at, second.time_s) == ("Feb 23 16:24:19", None)
    assert "(pid 7, python)" in first.sentence


@pytest.mark.parametrize(
    "stamp", ["2025-01-21T04:41:44,283302+00:00", "2025-01-21T05:41:44.283302+0100"]
)
def test_a_comma_fraction_and_a_point_fraction_are_the_same_instant(stamp):
    assert kernel_line(f"kern  :warn  : {stamp} x").time_s == pytest.approx(
        1737434504.283302, abs=1e-6
    )


def test_a_date_that_does_not_exist_is_no_time():
    assert kernel_line("2025-13-45T99:00:00+00:00 gpu kernel: x").time_s is None


def test_an_unknown_xid_says_so_and_names_the_catalog(read):
    event = read("[    1.000000] NVRM: Xid (PCI:0000:01:00): 9999, something new\n").events[0]
    assert event.code == 9999
    assert "not in spiketriage's table of 20" in event.sentence
    assert SOURCE in event.sentence


@pytest.mark.parametrize(
    ("code", "severity", "usually"),
    [
        (13, "error", "application"),
        (31, "error", "application"),
        (43, "error", "application"),
        (48, "fatal", "hardware"),
        (63, "warning", "hardware"),
        (64, "fatal", "hardware"),
        (74, "fatal", "hardware"),
        (79, "fatal", "hardware"),
        (94, "error", "hardware"),
        (95, "fatal", "hardware"),
        (119, "fatal", "undocumented"),
    ],
)
def test_the_table_says_what_the_catalog_says(code, severity, usually):
    assert (explain(code).severity, explain(code).usually) == (severity, usually)


def test_every_row_of_the_table_has_a_meaning_and_an_advice():
    assert all(row.meaning and row.advice for row in XIDS.values())
    assert set(range(144, 151)) <= set(XIDS)


def test_the_same_device_has_one_spelling_in_every_source():
    assert {pci_device("PCI:0000:9b:00"), pci_device("00000000:9B:00.0"), from_nccl("9b000")} == {
        "0000:9b:00"
    }
    assert from_nccl("100009b000") == pci_device("10000:9b:00.0") == "10000:9b:00"
    assert pci_device("nothing") == "nothing"


def test_an_absurd_xid_number_is_a_problem(read):
    facts = read(b"[    1.000000] NVRM: Xid (PCI:0000:01:00): " + b"9" * 5000 + b", x\n")
    assert facts.events == ()
    assert "expected an Xid" in facts.problems[0]


def test_nul_bytes_and_broken_utf8_are_said_and_survived(read):
    facts = read(
        b"\0\0\0[    1.000000] NVRM: Xid (PCI:0000:01:00): 79, \xff\xfe off\n" + b"\0" * 100_000
    )
    assert [event.code for event in facts.events] == [79]
    assert any("NUL" in problem for problem in facts.problems)
    assert any("UTF-8" in problem for problem in facts.problems)


@pytest.mark.parametrize(
    ("text", "sure"),
    [
        (event_logs.DMESG, 0.9),
        (event_logs.JOURNAL, 0.9),
        (event_logs.SHORT_ISO, 0.9),
        ("step 1 loss 2.0\n", 0.0),
    ],
)
def test_claims(tmp_path, text, sure):
    path = tmp_path / "some.txt"
    path.write_text(text)
    claimed = kernel_log.claims(look(path))
    assert claimed >= sure
    assert (claimed > 0) == (sure > 0)
