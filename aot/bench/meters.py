"""What the GPU's own meters say, through NVML: memory, energy, clocks, what slows it."""

from __future__ import annotations

import ctypes
from typing import Any

from aot import toolchain

_SM, _MEMORY = 1, 2  # nvmlClockType_t
# Bits of nvmlClocksThrottleReasons that mean slower than could be.
_SLOWING = {
    0x4: "power limit",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


class Meters:
    """The meters of the GPU that `toolchain.machine` reports; each is None where the GPU or its driver lacks it."""

    def __init__(self, handle: tuple[ctypes.CDLL, ctypes.c_void_p] | None) -> None:
        self._nvml: Any = None  # what a name of it is, ctypes finds out when it is called
        self._gpu: ctypes.c_void_p | None = None
        if handle is not None:
            self._nvml, self._gpu = handle

    @classmethod
    def open(cls) -> Meters:
        """Of this machine; without a GPU every meter is None."""
        return cls(toolchain.gpu_handle())

    def close(self) -> None:
        """Let go of NVML."""
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = None

    def memory(self) -> int | None:
        """Bytes in use, by everybody."""
        found = toolchain.Memory()
        return int(found.used) if self._asked("nvmlDeviceGetMemoryInfo", ctypes.byref(found)) else None

    def energy(self) -> int | None:
        """Millijoules since the driver was loaded, of the whole GPU; from Volta on."""
        found = ctypes.c_ulonglong()
        return found.value if self._asked("nvmlDeviceGetTotalEnergyConsumption", ctypes.byref(found)) else None

    def clocks(self) -> dict[str, Any] | None:
        """{sm_mhz, memory_mhz, slowed: [what slows it]} at this moment."""
        sm, memory, reasons = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_ulonglong()
        if not self._asked("nvmlDeviceGetClockInfo", _SM, ctypes.byref(sm)):
            return None
        self._asked("nvmlDeviceGetClockInfo", _MEMORY, ctypes.byref(memory))
        self._asked("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.byref(reasons))
        slowed = [name for bit, name in _SLOWING.items() if reasons.value & bit]
        return {"sm_mhz": sm.value, "memory_mhz": memory.value, "slowed": slowed}

    def _asked(self, call: str, *arguments: Any) -> bool:
        """Whether NVML answered: its calls return 0 for success."""
        return self._nvml is not None and not getattr(self._nvml, call)(self._gpu, *arguments)
