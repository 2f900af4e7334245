"""What this machine is: its GPU, its driver, the versions installed. The only file that probes."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path


@cache
def version(distribution: str) -> str | None:
    """The installed version of a distribution, None where it is not installed. Imports nothing."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def release(version: str | None) -> tuple[int, int]:
    """(major, minor) of a version; (0, 0) where none is known."""
    major, minor, *_ = (*(int(part) for part in re.findall(r"\d+", version or "")), 0, 0)
    return major, minor


def cpus() -> set[int]:
    """The CPUs that this process may use, by number: a container may not have all of the machine's."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


@cache
def own_digest() -> str:
    """SHA-256 over aot's own source files: an edit to aot invalidates what an older aot made."""
    total = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        total.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine: product name, target (`sm90`), memory in bytes."""

    name: str
    target: str
    memory: int


@dataclass(frozen=True)
class Machine:
    """The facts that decisions are made from. gpu None: none that the driver reports."""

    gpu: Gpu | None
    driver: str | None
    cpu: str


@cache
def machine() -> Machine:
    """Probe this machine once: NVML through ctypes, so neither torch nor CUDA is needed.

    The GPU is the first one that `CUDA_VISIBLE_DEVICES` lets a program see; an empty value hides all.
    """
    nvml = _nvml()
    gpu, driver = _probe(nvml, os.environ.get("CUDA_VISIBLE_DEVICES")) if nvml is not None else (None, None)
    return Machine(gpu, driver, _cpu())


def _nvml() -> ctypes.CDLL | None:
    """The driver's management library, None where there is no driver."""
    try:
        return ctypes.CDLL("nvml.dll" if os.name == "nt" else "libnvidia-ml.so.1")
    except OSError:
        return None


class Memory(ctypes.Structure):
    """`nvmlMemory_t`."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def _probe(nvml: ctypes.CDLL, visible: str | None) -> tuple[Gpu | None, str | None]:
    """Ask NVML, whose calls return 0 for success. A library without a working driver gives (None, None)."""
    if nvml.nvmlInit_v2():
        return None, None
    try:
        text = ctypes.create_string_buffer(96)
        driver = None if nvml.nvmlSystemGetDriverVersion(text, 96) else text.value.decode()
        handle = _first_visible(nvml, visible)
        if handle is None:
            return None, driver
        major, minor, memory = ctypes.c_int(), ctypes.c_int(), Memory()
        failed = (
            nvml.nvmlDeviceGetName(handle, text, 96)
            or nvml.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
            or nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
        )
        if failed:
            return None, driver
        return Gpu(text.value.decode(), f"sm{major.value}{minor.value}", int(memory.total)), driver
    finally:
        nvml.nvmlShutdown()


def gpu_handle() -> tuple[ctypes.CDLL, ctypes.c_void_p] | None:
    """NVML, open until its `nvmlShutdown`, and its handle of the GPU that `machine` reports; None without one."""
    nvml = _nvml()
    if nvml is None or nvml.nvmlInit_v2():
        return None
    handle = _first_visible(nvml, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return None if handle is None else (nvml, handle)


def _first_visible(nvml: ctypes.CDLL, visible: str | None) -> ctypes.c_void_p | None:
    """The handle of the GPU that CUDA would call device 0; None where `CUDA_VISIBLE_DEVICES` hides all."""
    first = "0" if visible is None else visible.split(",")[0].strip()
    handle = ctypes.c_void_p()
    if first.isdigit():
        failed = nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(first)), ctypes.byref(handle))
    elif first.startswith(("GPU-", "MIG-")):
        failed = nvml.nvmlDeviceGetHandleByUUID(first.encode(), ctypes.byref(handle))
    else:  # empty, or -1
        return None
    return None if failed else handle


def _cpu() -> str:
    """The processor's model name, as the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
