"""One spelling for a device's PCI address, so that kernel, nvidia-smi and NCCL name a GPU alike.

This module never opens a file.
"""

from __future__ import annotations

import re

ADDRESS = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_PARTS = re.compile(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-7]))?")


def pci_device(written: str) -> str:
    """`domain:bus:device` in lower case (0000:9b:00), with `.function` where it is not 0.

    Else as written.
    """
    parts = _PARTS.fullmatch(written.strip().upper().removeprefix("PCI:"))
    if parts is None:
        return written.strip()
    domain = int(parts[1] or "0", 16)
    if parts[4] not in (None, "0"):
        function = f".{parts[4]}"
    else:
        function = ""
    return f"{domain:04x}:{parts[2]}:{parts[3]}{function}".lower()


def from_nccl(bus_id: str) -> str:
    """NCCL's `busId`: an address without its separators, so that 9b000 is 0000:9b:00.0."""
    if not re.fullmatch(r"[0-9a-fA-F]{1,12}", bus_id):
        return bus_id
    value = int(bus_id, 16)
    return pci_device(
        f"{value >> 20:04x}:{value >> 12 & 0xFF:02x}:{value >> 4 & 0xFF:02x}.{value & 7}"
    )
