"""What is read beside the clock: /proc and NVML, from stand-ins with known numbers."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aot.bench import cpus, memory
from aot.bench.launches import launches
from aot.bench.meters import Meters


def test_memory_is_what_proc_says_in_kib(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmHWM:\t  2048 kB\nVmRSS:\t  1024 kB\n")
    assert memory.resident(status) == 1024 * 1024
    assert memory.peak(status) == 2048 * 1024
    assert memory.peak(tmp_path / "missing") is None


def test_the_peak_of_this_process_is_no_less_than_what_it_has_now() -> None:
    now, most = memory.resident(), memory.peak()
    assert now is not None
    assert most is not None
    assert most >= now > 1 << 20


def proc(folder: Path, spent: int, idle: int, own: int) -> Path:
    """The first CPU that this process may use at these counts, and one process. A second CPU it may not use."""
    mine = min(os.sched_getaffinity(0))
    foreign = max(os.sched_getaffinity(0)) + 1
    folder.mkdir()
    (folder / "stat").write_text(
        f"cpu  1 2 3 4\ncpu{mine} {spent} 0 0 {idle} 0 0 0 0 7 0\ncpu{foreign} 999 0 0 1 0 0 0 0 0 0\nintr 5\n"
    )
    (folder / "42").mkdir()
    (folder / "42" / "stat").write_text(f"42 (a name) here) S {' '.join(['0'] * 10)} {own - 1} 1 0\n")
    return folder


def test_others_are_what_the_cpus_did_beyond_our_own_processes(tmp_path: Path) -> None:
    before = cpus.read([42], proc(tmp_path / "before", spent=100, idle=100, own=50))
    after = cpus.read([42, 43], proc(tmp_path / "after", spent=180, idle=120, own=110))
    assert before is not None
    assert before.own == 50
    assert cpus.others(before, after) == pytest.approx((80 - 60) / 100)
    assert cpus.others(None, after) is None
    assert cpus.others(after, after) is None


class Nvml:
    """Calls return 0 for success. energy: whether the GPU counts it."""

    def __init__(self, energy: bool = True) -> None:
        self.energy = energy

    def nvmlDeviceGetMemoryInfo(self, gpu: Any, found: Any) -> int:
        found._obj.used = 3 << 30
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: Any, found: Any) -> int:
        found._obj.value = 123_456
        return 0 if self.energy else 3

    def nvmlDeviceGetClockInfo(self, gpu: Any, kind: int, found: Any) -> int:
        found._obj.value = {1: 1980, 2: 3201}[kind]
        return 0

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: Any, found: Any) -> int:
        found._obj.value = 0x1 | 0x4 | 0x40  # idle, which is no slowing, and two that are
        return 0


def meters(energy: bool = True) -> Meters:
    return Meters((Nvml(energy), None))  # type: ignore[arg-type]


def test_the_gpus_meters() -> None:
    gpu = meters()
    assert gpu.memory() == 3 << 30
    assert gpu.energy() == 123_456
    slowed = ["power limit", "hardware thermal slowdown"]
    assert gpu.clocks() == {"sm_mhz": 1980, "memory_mhz": 3201, "slowed": slowed}


def test_a_meter_that_the_gpu_lacks_is_none() -> None:
    assert meters(energy=False).energy() is None


def test_without_a_gpu_every_meter_is_none() -> None:
    none = Meters(None)
    assert (none.memory(), none.energy(), none.clocks()) == (None, None, None)
    none.close()


def event(name: str, correlation: int, device: str = "DeviceType.CUDA") -> Any:
    return SimpleNamespace(name=lambda: name, correlation_id=lambda: correlation, device_type=lambda: device)


def test_a_graph_is_one_launch_and_copies_are_none() -> None:
    events = [
        event("aten::linear", 1, "DeviceType.CPU"),
        event("gemm", 2),
        event("Memcpy HtoD", 3),
        event("Memset (Device)", 4),
        event("first of a graph", 5),
        event("second of a graph", 5),
        event("Memcpy DtoD", 5),
        event("without a launch", 0),
    ]
    assert launches(events) == 2
