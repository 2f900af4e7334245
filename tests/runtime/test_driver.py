"""Kernels loaded and launched through a stand-in for the driver. What the real one makes of it is seen on a GPU."""

from __future__ import annotations

import sys

import pytest

from aot.errors import EngineError
from aot.runtime.driver import Kernel
from tests.runtime import fake_driver
from tests.runtime.fake_driver import CUresult


def test_arguments_lie_behind_pointers_in_the_order_they_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = fake_driver.install(monkeypatch, context=3, parameters=3)
    kernel = Kernel.load("text", "add", 1024)
    kernel.launch((5, 2, 1), 128, [0x7F00_0000_1000, -1, 0x7F00_0000_2000], stream=9)
    (launch,) = driver.launches
    assert launch.function == (0, "add")
    assert (launch.grid, launch.threads, launch.shared, launch.stream) == ((5, 2, 1), 128, 1024, 9)
    assert launch.values == (0x7F00_0000_1000, 2**64 - 1, 0x7F00_0000_2000)
    assert launch.values[1] & 0xFFFF_FFFF == 0xFFFF_FFFF  # the four bytes that an int32 parameter takes
    assert driver.modules == ["text"]
    assert driver.retained == 0


def test_a_grid_without_programs_launches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = fake_driver.install(monkeypatch, context=3)
    Kernel.load("text", "add", 0).launch((0, 1, 1), 32, [], stream=0)
    assert driver.launches == []


def test_without_a_context_the_primary_one_is_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = fake_driver.install(monkeypatch, context=0)
    Kernel.load("text", "add", 0)
    assert (driver.retained, driver.context) == (1, 7)


def test_a_kernel_is_loaded_once_for_each_context(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = fake_driver.install(monkeypatch, context=3)
    first = Kernel.load("text", "add", 0)
    assert Kernel.load("text", "add", 0) is first
    assert Kernel.load("other text", "add", 0) is not first
    driver.context = 4
    assert Kernel.load("text", "add", 0) is not first
    assert driver.modules == ["text", "other text", "text"]


@pytest.mark.parametrize(("shared", "asked"), [(48 << 10, []), ((48 << 10) + 16, [(48 << 10) + 16])])
def test_shared_memory_above_48_kib_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, shared: int, asked: list[int]
) -> None:
    driver = fake_driver.install(monkeypatch, context=3)
    Kernel.load("text", "add", shared)
    assert [value for _, _, value in driver.attributes] == asked


def test_what_the_drivers_compiler_says_is_in_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = (CUresult.CUDA_ERROR_INVALID_PTX, b"ptxas line 3; error : Unknown symbol 'foo'\n")
    fake_driver.install(monkeypatch, context=3, refuses={"cuModuleLoadDataEx": refusal})
    with pytest.raises(EngineError, match=r"add: CUDA_ERROR_INVALID_PTX, words for 218: ptxas line 3.*'foo'"):
        Kernel.load("text", "add", 0)


def test_an_older_driver_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = (CUresult.CUDA_ERROR_UNSUPPORTED_PTX_VERSION, b"")
    fake_driver.install(monkeypatch, context=3, refuses={"cuModuleLoadDataEx": refusal})
    with pytest.raises(EngineError) as raised:
        Kernel.load("text", "add", 0)
    assert raised.value.fix == "the driver is older than the kernel's PTX: update the driver"


def test_a_refused_launch_names_kernel_and_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = (CUresult.CUDA_ERROR_INVALID_VALUE, b"")
    fake_driver.install(monkeypatch, context=3, parameters=1, refuses={"cuLaunchKernel": refusal})
    with pytest.raises(EngineError, match=r"kernel add is not launched with the grid \(1, 70000, 1\): CUDA_ERROR_INV"):
        Kernel.load("text", "add", 0).launch((1, 70000, 1), 32, [1], stream=0)


def test_without_cuda_bindings_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(EngineError) as raised:
        Kernel.load("text", "add", 0)
    assert "cuda-bindings" in str(raised.value.fix)
