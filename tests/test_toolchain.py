"""The machine's facts come from NVML; without a driver, or with every GPU hidden, there is no GPU."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from aot import toolchain
from aot.toolchain import Gpu


class Nvml:
    """The part of NVML that is asked: calls return 0 for success and fill what they are given."""

    gpus = (("NVIDIA L4", 8, 9, 24 << 30), ("NVIDIA H200", 9, 0, 141 << 30))

    def __init__(self, *, driver_works: bool = True) -> None:
        self.driver_works = driver_works
        self.open = 0

    def nvmlInit_v2(self) -> int:
        self.open += self.driver_works
        return 0 if self.driver_works else 9

    def nvmlShutdown(self) -> int:
        self.open -= 1
        return 0

    def nvmlSystemGetDriverVersion(self, text: Any, size: int) -> int:
        text.value = b"580.65.06"
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        if index.value >= len(self.gpus):
            return 2
        handle._obj.value = index.value + 1
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:
        handle._obj.value = 2
        return 0 if uuid == b"GPU-2222" else 6

    def nvmlDeviceGetName(self, handle: Any, text: Any, size: int) -> int:
        text.value = self.gpus[handle.value - 1][0].encode()
        return 0

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:
        _, major._obj.value, minor._obj.value, _ = self.gpus[handle.value - 1]
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        memory._obj.total = self.gpus[handle.value - 1][3]
        return 0


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    toolchain.machine.cache_clear()
    yield
    toolchain.machine.cache_clear()


@pytest.mark.parametrize(
    ("visible", "gpu"),
    [
        (None, Gpu("NVIDIA L4", "sm89", 24 << 30)),
        ("1", Gpu("NVIDIA H200", "sm90", 141 << 30)),
        ("1,0", Gpu("NVIDIA H200", "sm90", 141 << 30)),
        ("GPU-2222", Gpu("NVIDIA H200", "sm90", 141 << 30)),
        ("", None),
        ("-1", None),
        ("7", None),
        ("GPU-9999", None),
    ],
)
def test_the_first_gpu_that_cuda_would_see(monkeypatch: pytest.MonkeyPatch, visible: str | None, gpu: Gpu) -> None:
    nvml = Nvml()
    monkeypatch.setattr(toolchain, "_nvml", lambda: nvml)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    machine = toolchain.machine()
    assert machine.gpu == gpu
    assert machine.driver == "580.65.06"
    assert nvml.open == 0


def test_a_library_without_a_driver_means_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "_nvml", lambda: Nvml(driver_works=False))
    machine = toolchain.machine()
    assert machine.gpu is None
    assert machine.driver is None


def test_no_library_means_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    machine = toolchain.machine()
    assert machine.gpu is None
    assert machine.cpu
