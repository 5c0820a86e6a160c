"""Reads `nvidia-smi -q -x`: errors, remapped rows, retired pages and slowdowns of every GPU.

This module never runs nvidia-smi and never reads `N/A` as zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from xml.etree import ElementTree

from spiketriage.errors import CorruptFileError
from spiketriage.nouns.telemetry import Event, EventFacts, Severity
from spiketriage.readers.events.evidence_file import file_bytes
from spiketriage.readers.events.pci import pci_device
from spiketriage.readers.events.text_lines import integer, short
from spiketriage.readers.events.xml_tree import parse
from spiketriage.readers.look import Look

NAME = "nvidia-smi"
TELLS = (
    "ECC errors (since the driver was loaded, and ever), remapped rows, retired pages and "
    "slowdowns of every GPU."
)
CANNOT = "When an error happened; volatile counters start again when the driver is loaded."
MAX_BYTES = 64 << 20
MAX_GPUS = 1024  # of one machine
ROOT = "nvidia_smi_log"
_UNKNOWN = ("", "n/a", "[n/a]", "not supported", "[not supported]", "none")
# Tags under clocks_event_reasons (clocks_throttle_reasons in older drivers) that say a GPU runs
# slower than it could.
_SLOWDOWNS: tuple[tuple[str, Severity, str], ...] = (
    ("hw_thermal_slowdown", "error", "hardware slowdown: too hot"),
    ("hw_power_brake_slowdown", "error", "hardware slowdown: the power brake is asserted"),
    ("hw_slowdown", "error", "hardware slowdown"),
    ("sw_thermal_slowdown", "warning", "software slowdown: too hot"),
    ("sw_power_cap", "info", "clocks are held at the power limit, which is usual under full load"),
)
_FLAGS: tuple[tuple[str, str, Severity, str], ...] = (
    (
        ".//sram_threshold_exceeded",
        "ecc-threshold",
        "fatal",
        "the SRAM error threshold is exceeded",
    ),
    (
        ".//remapped_row_pending",
        "row-remap-pending",
        "error",
        "a row remapping waits for a reset of the GPU",
    ),
    (".//remapped_row_failure", "row-remap-failure", "fatal", "a row could not be remapped"),
    (
        ".//retired_pages/pending_retirement",
        "page-retirement-pending",
        "error",
        "a page retirement waits for a reset",
    ),
    (
        ".//gpu_reset_status/reset_required",
        "gpu-reset-required",
        "fatal",
        "the driver requires a reset",
    ),
    (".//channel_repair_pending", "repair-pending", "error", "a channel repair is pending"),
    (".//tpc_repair_pending", "repair-pending", "error", "a TPC repair is pending"),
)
_COUNTS: tuple[tuple[str, str, Severity, str], ...] = (
    (".//remapped_row_corr", "row-remapped", "info", "rows remapped for correctable errors"),
    (".//remapped_row_unc", "row-remapped", "warning", "rows remapped for uncorrectable errors"),
    (
        ".//multiple_single_bit_retirement/retired_count",
        "page-retired",
        "info",
        "pages retired for single-bit errors",
    ),
    (
        ".//double_bit_retirement/retired_count",
        "page-retired",
        "warning",
        "pages retired for double-bit errors",
    ),
    (".//pci/replay_counter", "pcie-replay", "info", "PCIe replays"),
)
_KEPT = re.compile(
    r"ecc_errors|remapped_rows|retired_pages|clocks_(?:event|throttle)_reasons_counters|replay"
)


_ERROR: Severity = "error"
_WARNING: Severity = "warning"
_INFO: Severity = "info"


class _Gpu:
    """One `<gpu>` element and where its facts go."""

    def __init__(self, element: ElementTree.Element, *, source: str, at: str) -> None:
        self._element = element
        self._source, self._at = source, at
        self.device = pci_device(element.get("id") or text(element, "pci/pci_bus_id") or "?")[:80]
        self.problems: list[str] = []

    def event(self, kind: str, severity: Severity, sentence: str) -> Event:
        return Event(
            kind=kind,
            severity=severity,
            sentence=short(f"GPU {self.device}: {sentence}"),
            source=self._source,
            at=self._at,
            device=self.device,
        )

    def events(self) -> Iterator[Event]:
        for element in self._element.iterfind("ecc_errors/*"):
            if element.tag in ("volatile", "aggregate"):
                yield from self._ecc(element)
        for path, kind, severity, sentence in _FLAGS:
            if text(self._element, path).lower() == "yes":
                yield self.event(kind, severity, sentence)
        for path, kind, severity, sentence in _COUNTS:
            count = self.count(self._element.find(path))
            if count:
                yield self.event(kind, severity, f"{count} {sentence}")
        yield from self._slowdowns()
        action = text(self._element, "gpu_recovery_action")
        if action.lower() not in _UNKNOWN:
            yield self.event(
                "gpu-recovery-action",
                "error",
                f"the driver asks for the recovery action {action!r}",
            )
        yield from self._link()

    def _ecc(self, period: ElementTree.Element) -> Iterator[Event]:
        """Uncorrectable errors since the driver was loaded are news; older ones are history."""
        since, if_uncorrectable = "in the GPU's life", _WARNING
        if period.tag == "volatile":
            since, if_uncorrectable = "since the driver was loaded", _ERROR
        for name, element in leaves(period):
            if element.tag == "sram_threshold_exceeded":
                continue
            # Before Ampere there is one element a memory, and a total.
            if name.startswith(("single_bit", "double_bit")) and not name.endswith(" total"):
                continue
            count = self.count(element)
            if not count:
                continue
            kind, severity = "ecc-correctable", _INFO
            if "uncorrectable" in name or name.startswith("double_bit"):
                kind, severity = "ecc-uncorrectable", if_uncorrectable
            yield self.event(kind, severity, f"{count} ECC errors {since}: {name}")

    def _slowdowns(self) -> Iterator[Event]:
        for reasons in ("clocks_event_reasons", "clocks_throttle_reasons"):
            for name, severity, sentence in _SLOWDOWNS:
                path = f"{reasons}/{reasons.removesuffix('s')}_{name}"
                if text(self._element, path).lower() == "active":
                    yield self.event("slowdown", severity, sentence)

    def _link(self) -> Iterator[Event]:
        now, most = self._lanes("current"), self._lanes("max")
        if now and most and now < most:
            sentence = f"the PCIe link has {now} of {most} lanes"
            yield self.event("pcie-link-width", "warning", sentence)

    def _lanes(self, which: str) -> int | None:
        width = text(self._element, f".//link_widths/{which}_link_width")
        return integer(width.removesuffix("x"))

    def count(self, element: ElementTree.Element | None) -> int | None:
        """The counter in `element`; None where it is absent, `N/A`, or no number.

        What is no number is a problem too.
        """
        if element is None:
            return None
        written = (element.text or "").strip()
        if written.lower() in _UNKNOWN:
            return None
        value = integer(written)
        if value is None or value < 0:
            self.problems.append(
                short(f"GPU {self.device}: {element.tag}: expected a count, found {written[:80]!r}")
            )
            return None
        return value

    def identity(self) -> Iterator[tuple[str, str]]:
        for name in ("product_name", "uuid", "serial", "ecc_mode/current_ecc"):
            value = text(self._element, name)
            if value:
                yield f"{self.device} {name.split('/')[-1]}", value[:200]
        for section in self._element.iter():
            if not _KEPT.fullmatch(section.tag):
                continue
            for place, leaf in leaves(section):
                value = (leaf.text or "").strip()
                if value and value.lower() not in _UNKNOWN:
                    yield f"{self.device} {place}", value[:200]


def leaves(
    element: ElementTree.Element, above: str = ""
) -> Iterator[tuple[str, ElementTree.Element]]:
    """Every element without children below `element`, or itself, with the tags that lead to it.

    Volatile and aggregate counters bear the same names, so the last tag alone would not do.
    """
    if not len(element):
        yield above or element.tag, element
    for child in element:
        yield from leaves(child, f"{above} {child.tag}".strip())


def text(element: ElementTree.Element, path: str) -> str:
    """The text at `path` below `element`, stripped; empty if there is none."""
    return (element.findtext(path) or "").strip()


def claims(look: Look, /) -> float:
    """Sure of the root element or its DTD."""
    if look.is_folder or look.is_lfs_pointer or look.is_source:
        return 0.0
    head = look.head.replace(b"\0", b"")  # UTF-16 too
    if b"<nvidia_smi_log" in head or b"nvsmi_device" in head:
        return 0.99
    return 0.0


def read(path: Path, /) -> EventFacts:
    """Every GPU's faults; all counters are in `identity`, to compare with a baseline.

    Raises:
        EvidenceError: it cannot be read, declares entities, or is not nvidia-smi's.
    """
    tree = parse(path, file_bytes(path, MAX_BYTES))
    if tree.root.tag != ROOT:
        raise CorruptFileError(path, "root element", expected=ROOT, seen=tree.root.tag[:80])
    at = text(tree.root, "timestamp")[:80]
    gpus = [
        _Gpu(element, source=path.name, at=at)
        for element in islice(tree.root.iterfind("gpu"), MAX_GPUS)
    ]
    events = tuple(event for gpu in gpus for event in gpu.events())
    identity = {
        name: text(tree.root, name)[:80]
        for name in ("driver_version", "cuda_version", "attached_gpus")
    }
    identity |= {key: value for gpu in gpus for key, value in gpu.identity()}
    problems = [tree.problem] if tree.problem else []
    attached = integer(identity["attached_gpus"])
    if attached is not None and attached != len(gpus):
        problems.append(
            f"{path.name}: expected {attached} GPUs as attached_gpus says, found {len(gpus)}"
        )
    return EventFacts(
        format=NAME,
        path=path,
        events=events,
        identity={key: value for key, value in identity.items() if value},
        problems=(*problems, *(problem for gpu in gpus for problem in gpu.problems)),
        notes=("a snapshot: it cannot say when an error happened", *_without_ecc(gpus)),
    )


def _without_ecc(gpus: list[_Gpu]) -> tuple[str, ...]:
    off = []
    for gpu in gpus:
        if dict(gpu.identity()).get(f"{gpu.device} current_ecc") == "Disabled":
            off.append(gpu.device)
    if not off:
        return ()
    gpus_off = f"ECC is switched off on GPU {', '.join(off)}"
    return (short(f"{gpus_off}: memory errors there are not counted"),)
