"""What NVIDIA documents about the Xid numbers that matter to training, as of the date below.

This module never guesses: a number that is not in the table is said to be unknown, and so is a
cause left undocumented.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from spiketriage.nouns.telemetry import Severity

SOURCE = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
READ_ON = "2026-11-29"  # the day on which a stored copy of that page was read
FIRST_NVLINK5, LAST_NVLINK5 = 144, 150
RECOVERY_ACTION = 154

Cause = Literal["application", "hardware", "user or system action", "undocumented"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """One Xid: its meaning and advice in our words, and what the catalog says usually causes it."""

    meaning: str
    severity: Severity
    usually: Cause
    advice: str


_RESTART = "restart the application"
_RESTART_AND_CHECK = f"{_RESTART}; check it and CUDA"
_RESET = "reset the GPU before it is used again; if it returns, contact the vendor"
_DEBUG = (
    "run under compute-sanitizer memcheck or cuda-gdb; suspect driver or hardware only if that is "
    "inconclusive"
)
_NVLINK5 = "decode the hex words with the catalog's NVLink 5 table; what to do depends on them"
_IGNORE = "nothing to do at once; contact the vendor if it persists"

# Number, meaning, severity, usual cause, advice. The severity is what the catalog says to do at
# once: a reset or reboot is fatal, a restart is an error, the rest is a warning.
_ROWS: tuple[tuple[int, str, Severity, Cause, str], ...] = (
    (8, "the GPU stopped processing", "error", "undocumented", _RESTART),
    (11, "invalid or corrupted push buffer stream", "error", "undocumented", _RESTART_AND_CHECK),
    (13, "graphics engine exception, typically an access out of bounds", "error", "application",
     _DEBUG),
    (25, "invalid or illegal push buffer stream", "error", "undocumented", _RESTART_AND_CHECK),
    (31, "GPU memory page fault, an illegal address", "error", "application", _DEBUG),
    (32, "corrupted push buffer stream, mainly the quality of the PCI link", "error", "hardware",
     _RESTART),
    (37, "driver firmware error", "warning", "undocumented", "check the application and CUDA"),
    (38, "driver firmware error", "warning", "undocumented", _IGNORE),
    (39, "copy engine exception", "error", "undocumented", _RESTART),
    (40, "copy engine exception", "error", "undocumented", _RESTART),
    (41, "copy engine exception", "error", "undocumented", _RESTART),
    (43, "the GPU stopped processing after a fault of the application; it stays healthy",
     "error", "application", "look for what the application did before it"),
    (44, "graphics engine fault during a context switch", "warning", "undocumented", _IGNORE),
    (45, "the application was torn down (abort, kill, reset, or an earlier error)",
     "warning", "user or system action",
     "follow the Xid before it; alone it is the trace of a killed application"),
    (46, "the GPU stopped processing", "fatal", "undocumented", _RESET),
    (48, "uncorrectable (double-bit) ECC error", "fatal", "hardware",
     "reset the GPU or reboot the node; look at nvidia-smi's ECC counters and SRAM threshold"),
    (54, "auxiliary power is not connected to the GPU board", "error", "hardware",
     "check the cabling"),
    (62, "an internal micro-controller halted", "fatal", "undocumented", _RESET),
    (63, "a row was remapped or a page retired after an ECC error", "warning", "hardware",
     "nothing at once; see remapped rows in nvidia-smi"),
    (64, "remapping a row or retiring a page failed", "fatal", "hardware", _RESET),
    (66, "illegal access by the driver", "warning", "undocumented", "investigate the software"),
    (67, "illegal access by the driver", "warning", "undocumented", _IGNORE),
    (69, "graphics engine class error", "error", "undocumented", _RESTART_AND_CHECK),
    (74, "NVLink error: the link, or the device at its other end", "fatal", "hardware",
     "reset the GPU or reboot the node; see `nvidia-smi nvlink`, and the GPU at the other end"),
    (79, "the GPU has fallen off the bus, often the PCIe link", "fatal", "hardware",
     "reboot the node; read the kernel's PCI messages and the system event log; "
     "if it returns, contact the vendor"),
    (80, "corrupted data was sent to the GPU", "error", "undocumented", _RESTART_AND_CHECK),
    (92, "high rate of single-bit ECC errors", "warning", "undocumented", _IGNORE),
    (93, "the InfoROM's provisioned wear limit was violated", "warning", "user or system action",
     _IGNORE),
    (94, "contained memory error (ECC is the cause named): one application is affected",
     "error", "hardware", "restart that application; reset the GPU when convenient"),
    (95, "uncontained memory error (ECC is the cause named): several applications are affected",
     "fatal", "hardware", "reset the GPU before any application restarts"),
    (109, "context switch timeout", "fatal", "undocumented", _RESET),
    (110, "security fault", "fatal", "hardware",
     "undo recent hardware changes and reset the system cold"),
    (119, "timeout waiting for the GPU's GSP to answer", "fatal", "undocumented",
     "reset the GPU or power-cycle the node if it persists"),
    (120, "error in code that runs on the GPU's GSP", "fatal", "undocumented",
     "reset the GPU or power-cycle the node if it persists"),
    (121, "corrected errors on the link to the Grace CPU, without effect", "warning", "hardware",
     "reset the GPU at the next service window"),
    (136, "NVLink training failed", "fatal", "undocumented",
     "reset the GPU; investigate the link's signal"),
    (137, "NVLink privilege error, an illegal peer access", "warning", "application", _DEBUG),
    (140, "uncorrectable memory error that kept the driver from remapping it", "fatal", "hardware",
     _RESET),
    (141, "CUDA fast path error", "warning", "undocumented", _IGNORE),
    (143, "GPU initialization error", "fatal", "undocumented", _RESET),
    (144, "NVLink 5 error, unit SAW", "error", "undocumented", _NVLINK5),
    (145, "NVLink 5 error, unit RLW", "error", "undocumented", _NVLINK5),
    (146, "NVLink 5 error, unit TLW", "error", "undocumented", _NVLINK5),
    (147, "NVLink 5 error, unit TREX", "error", "undocumented", _NVLINK5),
    (148, "NVLink 5 error, unit NVLPW_CTRL", "error", "undocumented", _NVLINK5),
    (149, "NVLink 5 error, unit NETIR", "error", "undocumented", _NVLINK5),
    (150, "NVLink 5 error, unit MSE", "error", "undocumented", _NVLINK5),
    (RECOVERY_ACTION, "the recovery action that other Xids call for has changed",
     "warning", "undocumented", "do what the message names, and follow the Xid that came with it"),
    (155, "an NVLink went down on purpose, or to sleep", "fatal", "undocumented", "reset the GPU"),
    (156, "a resource of the GPU was retired", "fatal", "undocumented", "reset the GPU"),
    (157, "a resource could not be retired, none are left", "warning", "hardware",
     "work can go on, but the same Xid may return"),
    (158, "fatal GPU timeout", "fatal", "undocumented", _RESET),
    (160, "a channel was retired", "warning", "undocumented", "investigate the software"),
    (161, "a channel could not be retired", "warning", "undocumented", "investigate the software"),
    (163, "power smoothing was switched off", "warning", "undocumented",
     "no reset is needed; see thermal events"),
    (167, "fatal PCIe timeout", "error", "undocumented", "the catalog gives no advice"),
    (168, "errors in a write-protected region of GPU memory", "error", "undocumented",
     "enable ECC"),
    (169, "an internal micro-controller halted", "error", "undocumented",
     "the catalog gives no advice"),
    (171, "uncorrectable DRAM error, in addition to Xid 48", "error", "hardware", "see Xid 48"),
    (172, "uncorrectable SRAM error, in addition to Xid 48", "error", "hardware", "see Xid 48"),
)  # fmt: skip
XIDS: dict[int, Xid] = {}
for _code, _meaning, _severity, _usually, _advice in _ROWS:
    XIDS[_code] = Xid(meaning=_meaning, severity=_severity, usually=_usually, advice=_advice)


def explain(code: int) -> Xid:
    """What is documented about `code`; an Xid that is not in the table says so."""
    return XIDS.get(code) or Xid(
        meaning=f"not in spiketriage's table of {READ_ON}",
        severity="warning",
        usually="undocumented",
        advice=f"look it up at {SOURCE}",
    )
