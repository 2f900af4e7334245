"""A stand-in for CuPy over `fake_cuda`: arrays in the GPU's memory, and a current stream to work on."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.runtime.fake_cuda import Cuda


class Memory:
    """Bytes on the GPU. Those of arrays that are gone are given out again, the last ones first and
    only to the stream that had them, as CuPy's pool does."""

    pool: ClassVar[dict[tuple[int, int, int], list[int]]] = {}

    def __init__(self, cuda: Cuda, size: int, stream: int) -> None:
        self._free = self.pool.setdefault((id(cuda), stream, size), [])
        self.ptr = self._free.pop() if self._free else cuda._block(max(size, 1), "device")

    def __del__(self) -> None:
        self._free.append(self.ptr)


def install(monkeypatch: pytest.MonkeyPatch, cuda: Cuda, stream: int = 0) -> Any:
    """Put the module where `sys.modules` has it. `module.stream` is the current stream."""
    module: Any = ModuleType("cupy")
    module.stream = stream

    class ndarray:
        def __init__(self, memory: Memory, shape: Sequence[int], dtype: Any, offset: int = 0, dense: bool = True):
            self.memory, self.shape, self.dtype = memory, tuple(shape), np.dtype(dtype)
            self.data = SimpleNamespace(ptr=memory.ptr + offset)
            self.device = SimpleNamespace(id=0)
            self.flags = SimpleNamespace(c_contiguous=dense)

        @property
        def nbytes(self) -> int:
            return int(np.prod(self.shape)) * self.dtype.itemsize

        def get(self) -> Any:
            with cuda._lock:
                cuda._drain(module.stream)
            array = np.empty(self.shape, self.dtype)
            ctypes.memmove(array.ctypes.data, self.data.ptr, array.nbytes)
            return array

        def set(self, array: Any) -> None:
            """As a kernel would on the current stream: later."""
            kept = np.ascontiguousarray(array, self.dtype)
            cuda.enqueue(module.stream, lambda: ctypes.memmove(self.data.ptr, kept.ctypes.data, kept.nbytes))

        def copy(self, order: str = "C") -> ndarray:
            made = empty(self.shape, self.dtype)
            source = self

            # The stand-in's only scattered arrays are transposed ones.
            def later() -> None:
                array = np.empty(source.shape[::-1], source.dtype)
                ctypes.memmove(array.ctypes.data, source.data.ptr, array.nbytes)
                array = np.ascontiguousarray(array.T) if not source.flags.c_contiguous else array
                ctypes.memmove(made.data.ptr, array.ctypes.data, array.nbytes)

            cuda.enqueue(module.stream, later)
            return made

        def view(self, dtype: Any) -> ndarray:
            return ndarray(self.memory, self.shape, dtype, self.data.ptr - self.memory.ptr)

        @property
        def T(self) -> ndarray:
            return ndarray(self.memory, self.shape[::-1], self.dtype, dense=False)

        def moved(self, offset: int) -> ndarray:
            """The same elements somewhat later in memory, as a slice of a larger array has them."""
            array = self.get()
            other = ndarray(Memory(cuda, self.nbytes + offset, module.stream), self.shape, self.dtype, offset)
            ctypes.memmove(other.data.ptr, array.ctypes.data, array.nbytes)
            return other

    def empty(shape: Sequence[int], dtype: Any = "float32") -> ndarray:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return ndarray(Memory(cuda, size, module.stream), shape, dtype)

    def asarray(array: Any) -> ndarray:
        made = empty(array.shape, array.dtype)
        ctypes.memmove(made.data.ptr, np.ascontiguousarray(array).ctypes.data, array.nbytes)
        return made

    module.ndarray, module.empty, module.asarray = ndarray, empty, asarray
    module.cuda = SimpleNamespace(
        Device=lambda number: nullcontext(),
        get_current_stream=lambda device=None: SimpleNamespace(ptr=module.stream),
    )
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module
