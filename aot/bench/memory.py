"""Memory of this process, as Linux counts it."""

from __future__ import annotations

from pathlib import Path

STATUS = Path("/proc/self/status")


def resident(status: Path = STATUS) -> int | None:
    """Bytes of physical memory in use now; None where the system does not say."""
    return _field(status, "VmRSS")


def peak(status: Path = STATUS) -> int | None:
    """The most that it ever was."""
    return _field(status, "VmHWM")


def _field(status: Path, name: str) -> int | None:
    """In bytes; the file has «kB» and means KiB (proc(5))."""
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:")), None)
