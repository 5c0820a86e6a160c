"""What a kernel message says about a GPU, a process that was killed, PCIe or the machine.

This module never opens a file and never looks at more than one message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from spiketriage.nouns.telemetry import Severity
from spiketriage.readers.events.pci import ADDRESS, pci_device
from spiketriage.readers.events.text_lines import integer, short
from spiketriage.readers.events.xid import FIRST_NVLINK5, LAST_NVLINK5, RECOVERY_ACTION, explain

_XID = re.compile(rf"NVRM: Xid \((?:PCI:)?({ADDRESS})\): ([0-9]+),?\s*(.*)", re.S)
_PROCESS = re.compile(r"pid='?(?:<?unknown>?|(\d+))'?, (?:name=([^,]*), ?)?")
_NVLINK5 = re.compile(
    r"(?P<unit>[A-Z_0-9]{1,40}(?:/[A-Z_0-9]{1,40})?)\s{1,9}(?P<fatal>Fatal|Non-?fatal)"
    r"\s{1,9}XC\d{1,9}\s{1,9}i\d{1,9}"
    r"\s{1,9}Link\s{1,9}(?P<link>-?\d{1,9})"
    r"\s{1,9}\((?P<words>0x[0-9a-fA-F]{1,16}(?: 0x[0-9a-fA-F]{1,16}){0,31})"
)
_RECOVERY = re.compile(r"to 0x[0-9a-fA-F]+ \(([^)]*)\)")
_ACTIONS: Mapping[str, Severity] = {"None": "info", "Drain P2P": "error"}
_SXID = re.compile(rf"SXid \((?:PCI:)?({ADDRESS})\): ([0-9]+), (Non-fatal|Fatal),? ?(.*)")
_OFF_BUS = re.compile(rf"NVRM: GPU (?:at )?(?:PCI:)?({ADDRESS}):? (?:GPU )?has fallen off the bus")
_RESET = re.compile(rf"GPU at (?:PCI:)?({ADDRESS}) .*likely needs to be reset")
_KILLED = re.compile(r"[Oo]ut of memory: Kill(?:ed)? process (\d+),?(?: UID \d+,?)? \(([^)]*)\)")
_REAPED = re.compile(r"oom_reaper: reaped process (\d+) \(([^)]*)\)")
_OOM = re.compile(r"oom-kill:constraint=(\w+)")
_OOM_TASK = re.compile(r"task=([^,]{0,64}),pid=(\d{1,10})")
_SEGFAULT = re.compile(
    r"(.{0,32}?)\[(\d+)\]: segfault at (\S+) ip \S+ sp \S+ error \S+(?: in ([^\[\s]+))?"
)
_TRAP = re.compile(
    r"traps: (.{0,32}?)\[(\d+)\] (?:trap )?(.{1,40}?) (?:ip:|rip:).*?(?: in ([^\[\s]+))?$"
)
_EDAC = re.compile(r"EDAC \S{1,40} \d{1,9} (CE|UE)\b")
_ADDRESS_AHEAD = re.compile(rf"({ADDRESS})")
_AER_SOURCE = re.compile(rf"error (?:message )?received:? (?:from )?({ADDRESS})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a message reports, before it is known where and when."""

    kind: str
    severity: Severity
    sentence: str
    device: str = ""
    code: int | None = None


def xid_error(message: str) -> Finding | None:
    """An Xid in either spelling of the device, with or without process."""
    match = _XID.search(message)
    if match is None:
        return None
    code = integer(match[2])
    if code is None:
        return None
    device, rest = pci_device(match[1]), match[3]
    process = ""
    owner = _PROCESS.match(rest)
    if owner:
        rest = rest[owner.end() :]
        if owner[1]:
            process = f" (pid {owner[1]}, {owner[2]})"
    xid = explain(code)
    severity = _stated_severity(code, rest) or xid.severity
    meaning = xid.meaning
    if xid.usually != "undocumented":
        meaning = f"{meaning}; usually {xid.usually}"
    sentence = f"Xid {code} on GPU {device}{process}: {meaning}; {xid.advice}. Log: {short(rest)}"
    return Finding(kind="xid", severity=severity, sentence=sentence, device=device, code=code)


def _stated_severity(code: int, rest: str) -> Severity | None:
    """The severity that the message itself states, as NVLink 5 errors and recovery actions do."""
    if FIRST_NVLINK5 <= code <= LAST_NVLINK5:
        error = _NVLINK5.search(rest)
        if error is None:
            return None
        return "fatal" if error["fatal"] == "Fatal" else "warning"
    if code == RECOVERY_ACTION:
        action = _RECOVERY.search(rest)
        if action is None:
            return None
        return _ACTIONS.get(action[1], "fatal")
    return None


def sxid_error(message: str) -> Finding | None:
    """An error of an NVSwitch; its detail lines repeat the number and are left out."""
    match = _SXID.search(message)
    if match is None:
        return None
    address, number, grade, text = match.groups()
    device = pci_device(address)
    return Finding(
        kind="sxid",
        severity="fatal" if grade == "Fatal" else "warning",
        sentence=f"SXid {short(number)} on NVSwitch {device}: {grade.lower()}: {short(text)}",
        device=device,
        code=integer(number),
    )


def off_bus(message: str) -> Finding | None:
    """A GPU that fell off the bus, said in one line without an Xid."""
    match = _OFF_BUS.search(message)
    if match:
        return fallen(pci_device(match[1]))
    return None


def fallen(device: str) -> Finding:
    """The finding for a GPU that no longer answers; `device` is empty where the log names none."""
    named = f"GPU {device}" if device else "a GPU that the log does not name"
    return Finding(
        kind="gpu-off-bus",
        severity="fatal",
        sentence=f"{named} has fallen off the bus and does not answer; this line carries no Xid",
        device=device,
    )


def reset_advised(message: str) -> Finding | None:
    """The driver's own advice; from here on it prints only some of the errors."""
    match = _RESET.search(message)
    if match is None:
        return None
    device = pci_device(match[1])
    sentence = (
        f"the driver says that GPU {device} likely needs a reset, and prints only some further "
        "errors"
    )
    return Finding(kind="gpu-reset-advised", severity="error", sentence=sentence, device=device)


def oom(message: str) -> Finding | None:
    """A process that the kernel killed, or is about to kill, for want of memory."""
    match = _KILLED.search(message)
    if match:
        scope = "its memory cgroup" if "cgroup" in message else "the machine"
        sentence = f"process {match[1]} ({match[2]}) was killed: {scope} is out of memory"
        return Finding(kind="oom-kill", severity="error", sentence=sentence)
    match = _REAPED.search(message)
    if match:
        sentence = (
            f"the memory of process {match[1]} ({match[2]}) was taken back after an "
            "out-of-memory kill"
        )
        return Finding(kind="oom-reaped", severity="info", sentence=sentence)
    match = _OOM.search(message)
    if match:
        task = _OOM_TASK.search(message)
        of = f" of process {task[2]} ({task[1]})" if task else ""
        sentence = f"out-of-memory kill{of} under constraint {match[1]}"
        return Finding(kind="oom-kill", severity="error", sentence=short(sentence))
    if "invoked oom-killer" in message:
        return Finding(kind="oom-invoked", severity="warning", sentence=short(message))
    return None


def crash(message: str) -> Finding | None:
    """A process that died of a memory fault or a trap, with the library it happened in."""
    match = _SEGFAULT.search(message)
    if match is not None:
        what = f"segmentation fault at {match[3]}"
    else:
        match = _TRAP.search(message)
        if match is None:
            return None
        what = match[3]
    if match[4]:
        what = f"{what} in {match[4]}"
    return Finding(
        kind="segfault",
        severity="error",
        sentence=short(f"process {match[2]} ({match[1].strip()}): {what}"),
    )


def pcie(message: str) -> Finding | None:
    """An error that PCIe's own reporting saw; what it says when the machine boots is none."""
    if "error" not in message.lower():
        return None
    source = _AER_SOURCE.search(message) or _ADDRESS_AHEAD.search(message)
    device = pci_device(source[1]) if source else ""
    lower = message.lower()
    severity: Severity = "error"
    if "uncorrect" not in lower and "correct" in lower:
        severity = "warning"
    elif "fatal" in lower and "non-fatal" not in lower and "nonfatal" not in lower:
        severity = "fatal"
    return Finding(
        kind="pcie-error",
        severity=severity,
        sentence=f"PCIe error: {short(message)}",
        device=device,
    )


def link_down(message: str) -> Finding | None:
    """A PCIe slot that lost its link."""
    if "Link Down" not in message:
        return None
    return Finding(
        kind="pcie-link-down", severity="fatal", sentence=f"a PCIe link went down: {short(message)}"
    )


def memory_error(message: str) -> Finding | None:
    """Errors that the memory controller corrected (CE) or could not (UE)."""
    match = _EDAC.search(message)
    if match is None:
        return None
    severity: Severity = "warning" if match[1] == "CE" else "error"
    return Finding(
        kind="machine-check", severity=severity, sentence=f"host memory error: {short(message)}"
    )


def machine_check(message: str) -> Finding | None:
    """What the CPU or the firmware reported."""
    corrected = "corrected" in message.lower() and "uncorrected" not in message.lower()
    warning = corrected or "events logged" in message  # the latter only points to a line elsewhere
    return Finding(
        kind="machine-check",
        severity="warning" if warning else "error",
        sentence=f"hardware error of the machine: {short(message)}",
    )


def hung(message: str) -> Finding | None:
    """A process that waits in the kernel for minutes."""
    if "INFO: task" not in message:
        return None
    return Finding(kind="hung-task", severity="warning", sentence=short(message))


def panic(message: str) -> Finding | None:
    """The kernel's last words."""
    return Finding(kind="kernel-panic", severity="fatal", sentence=short(message))


# A needle is looked for before its rule runs: almost every line of a log holds none of them.
RULES: Mapping[str, Callable[[str], Finding | None]] = {
    "NVRM: Xid": xid_error,
    "SXid (": sxid_error,
    "fallen off the bus": off_bus,
    "likely needs to be reset": reset_advised,
    "ut of memory: Kill": oom,
    "oom_reaper:": oom,
    "oom-kill:": oom,
    "invoked oom-killer": oom,
    ": segfault at": crash,
    "traps: ": crash,
    "AER: ": pcie,
    "PCIe Bus Error:": pcie,
    "pciehp": link_down,
    "[Hardware Error]:": machine_check,
    "EDAC ": memory_error,
    "blocked for more than": hung,
    "Kernel panic - not syncing": panic,
}


def finding(message: str) -> Finding | None:
    """What the first rule that fits says of `message`.

    None for the many messages that report nothing of interest.
    """
    for needle, rule in RULES.items():
        if needle in message:
            result = rule(message)
            if result is not None:
                return result
    return None
