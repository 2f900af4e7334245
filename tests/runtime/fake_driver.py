"""A stand-in for `cuda.bindings.driver`: it keeps what it is asked, and reads arguments as the driver does."""

from __future__ import annotations

import ctypes
import enum
import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest

from aot.runtime import driver as runtime


class CUresult(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_INVALID_PTX = 218
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901


class CUjit_option(enum.IntEnum):
    CU_JIT_ERROR_LOG_BUFFER = 5
    CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6


class CUfunction_attribute(enum.IntEnum):
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8


@dataclass
class Launch:
    function: Any
    grid: tuple[int, int, int]
    threads: int
    shared: int
    stream: int
    values: tuple[int, ...]


@dataclass
class Driver:
    """`context` is the current one, 0 for none; `refuses` a call's name -> (its status, what it writes to the log)."""

    context: int = 0
    refuses: dict[str, tuple[CUresult, bytes]] = field(default_factory=dict)
    parameters: int = 0
    modules: list[str] = field(default_factory=list)
    attributes: list[tuple[Any, Any, int]] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    retained: int = 0

    CUjit_option = CUjit_option
    CUfunction_attribute = CUfunction_attribute

    def _said(self, call: str) -> CUresult:
        return self.refuses.get(call, (CUresult.CUDA_SUCCESS, b""))[0]

    def cuInit(self, flags: int) -> tuple[Any, ...]:
        return (self._said("cuInit"),)

    def cuCtxGetCurrent(self) -> tuple[Any, ...]:
        return CUresult.CUDA_SUCCESS, self.context

    def cuDeviceGet(self, ordinal: int) -> tuple[Any, ...]:
        return CUresult.CUDA_SUCCESS, ordinal

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[Any, ...]:
        self.retained += 1
        return CUresult.CUDA_SUCCESS, 7

    def cuCtxSetCurrent(self, context: int) -> tuple[Any, ...]:
        self.context = context
        return (CUresult.CUDA_SUCCESS,)

    def cuCtxGetId(self, context: int) -> tuple[Any, ...]:
        return CUresult.CUDA_SUCCESS, 100 + context

    def cuModuleLoadDataEx(self, image: bytes, count: int, keys: list[Any], values: list[Any]) -> tuple[Any, ...]:
        assert image.endswith(b"\0"), "PTX is NUL-terminated"
        assert count == len(keys) == len(values)
        assert self.context, "a module is loaded into the current context"
        status, said = self.refuses.get("cuModuleLoadDataEx", (CUresult.CUDA_SUCCESS, b""))
        log = values[keys.index(CUjit_option.CU_JIT_ERROR_LOG_BUFFER)]
        log[: len(said)] = said
        self.modules.append(image[:-1].decode())
        return status, len(self.modules) - 1

    def cuModuleGetFunction(self, module: int, name: bytes) -> tuple[Any, ...]:
        return CUresult.CUDA_SUCCESS, (module, name.decode())

    def cuFuncSetAttribute(self, function: Any, attribute: Any, value: int) -> tuple[Any, ...]:
        self.attributes.append((function, attribute, value))
        return (self._said("cuFuncSetAttribute"),)

    def cuLaunchKernel(
        self, function: Any, x: int, y: int, z: int, bx: int, by: int, bz: int, shared: int, stream: int,
        parameters: int, extra: int,
    ) -> tuple[Any, ...]:  # fmt: skip
        assert (by, bz, extra) == (1, 1, 0)
        pointers = (ctypes.c_uint64 * self.parameters).from_address(parameters)
        values = tuple(ctypes.c_uint64.from_address(pointer).value for pointer in pointers)
        self.launches.append(Launch(function, (x, y, z), bx, shared, int(stream), values))
        return (self._said("cuLaunchKernel"),)

    def cuGetErrorString(self, status: CUresult) -> tuple[Any, ...]:
        return CUresult.CUDA_SUCCESS, f"words for {int(status)}".encode()


def install(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Driver:
    """Put a stand-in where `from cuda.bindings import driver` finds it."""
    driver = Driver(**settings)
    monkeypatch.setattr(runtime, "_loaded", {})
    package: Any = ModuleType("cuda.bindings")
    package.driver = driver
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", package)
    return driver
