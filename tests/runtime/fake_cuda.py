"""A GPU in the host's memory: what `fake_driver` lacks to run engines, with streams that work when they are waited for.

What is enqueued is done no sooner than something waits for it, so that a result that is read too early, or pinned
memory that is written too early, is wrong here as it may be on a GPU. Memory that was given back is overwritten, and
whoever uses it is told. Calls without a current context are refused, as are synchronous ones while a stream captures.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from aot.runtime import driver as runtime
from tests.runtime.fake_driver import CUresult, Driver

Op = Callable[[], None]
OK = (CUresult.CUDA_SUCCESS,)
ALIGNED = 256


@dataclass
class Graph:
    """What was captured; `ops` are done anew with every launch."""

    number: int
    ops: list[Op]
    broken: bool = False

    def __int__(self) -> int:
        return self.number


@dataclass
class Cuda(Driver):
    """GPUs of one kind. counts: how often each call came. device, host: bytes that are allocated now."""

    gpus: int = 1
    capability: tuple[int, int] = (9, 0)
    counts: Counter[str] = field(default_factory=Counter)
    device: int = 0
    host: int = 0

    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=0, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=1
    )
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUevent_flags = SimpleNamespace(CU_EVENT_DISABLE_TIMING=2)
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)
    CUstream = staticmethod(int)

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._contexts: dict[int, list[int]] = {}
        self._blocks: dict[int, tuple[Any, int, str]] = {}
        self._queues: dict[int, deque[Op]] = {0: deque(), 1: deque()}
        self._issued: Counter[int] = Counter()
        self._finished: Counter[int] = Counter()
        self._capturing: dict[int, Graph] = {}
        self._events: dict[int, tuple[int, int]] = {}
        self._numbers = iter(range(1000, 10**9))

    def _called(self, call: str, *, waits: bool = False) -> CUresult:
        self.counts[call] += 1
        assert self._contexts.get(threading.get_ident()), f"{call} without a current context"
        assert not (waits and self._capturing), f"{call} while a stream captures"
        return self._said(call)

    # Contexts, by thread.
    def cuDeviceGetCount(self) -> tuple[Any, ...]:
        return CUresult.CUDA_SUCCESS, self.gpus

    def cuDeviceGetName(self, length: int, device: int) -> tuple[Any, ...]:
        return CUresult.CUDA_SUCCESS, b"NVIDIA H200\0\0"

    def cuDeviceGetAttribute(self, kind: int, device: int) -> tuple[Any, ...]:
        return CUresult.CUDA_SUCCESS, self.capability[kind]

    def cuDevicePrimaryCtxRelease(self, device: int) -> tuple[Any, ...]:
        self.retained -= 1
        return OK

    def cuCtxGetCurrent(self) -> tuple[Any, ...]:
        return CUresult.CUDA_SUCCESS, (self._contexts.get(threading.get_ident()) or [0])[-1]

    def cuCtxPushCurrent(self, context: int) -> tuple[Any, ...]:
        self._contexts.setdefault(threading.get_ident(), []).append(context)
        return OK

    def cuCtxPopCurrent(self) -> tuple[Any, ...]:
        return CUresult.CUDA_SUCCESS, self._contexts[threading.get_ident()].pop()

    def cuCtxSynchronize(self) -> tuple[Any, ...]:
        said = self._called("cuCtxSynchronize", waits=True)
        with self._lock:
            for stream in list(self._queues):
                self._drain(stream)
        return (said,)

    # Memory.
    def _block(self, size: int, kind: str) -> int:
        with self._lock:
            buffer = ctypes.create_string_buffer(b"\xaa" * (size + ALIGNED), size + ALIGNED)
            address = -(-ctypes.addressof(buffer) // ALIGNED) * ALIGNED
            self._blocks[address] = (buffer, size, kind)
            setattr(self, kind, getattr(self, kind) + size)
            return address

    def _unblock(self, address: int, kind: str) -> None:
        with self._lock:
            for stream in list(self._queues):
                self._drain(stream)
            _, size, was = self._blocks.pop(address)
            assert was == kind
            ctypes.memset(address, 0xDD, size)
            setattr(self, kind, getattr(self, kind) - size)

    def holds(self, address: int, size: int, kind: str = "device") -> bool:
        """Whether these bytes were allocated and not given back."""
        return any(
            start <= address and address + size <= start + length
            for start, (_, length, was) in self._blocks.items()
            if was == kind
        )

    def cuMemAlloc(self, size: int) -> tuple[Any, ...]:
        said = self._called("cuMemAlloc", waits=True)
        assert size > 0, "CUDA allocates nothing of no size"
        return (said, 0) if said else (said, self._block(size, "device"))

    def cuMemFree(self, address: int) -> tuple[Any, ...]:
        said = self._called("cuMemFree", waits=True)
        self._unblock(address, "device")
        return (said,)

    def cuMemAllocAsync(self, size: int, stream: int) -> tuple[Any, ...]:
        said = self._called("cuMemAllocAsync")
        return said, self._block(size, "device")

    def cuMemFreeAsync(self, address: int, stream: int) -> tuple[Any, ...]:
        said = self._called("cuMemFreeAsync")
        self._unblock(address, "device")
        return (said,)

    def cuMemHostAlloc(self, size: int, flags: int) -> tuple[Any, ...]:
        said = self._called("cuMemHostAlloc", waits=True)
        return said, self._block(size, "host")

    def cuMemFreeHost(self, address: int) -> tuple[Any, ...]:
        said = self._called("cuMemFreeHost", waits=True)
        self._unblock(address, "host")
        return (said,)

    def _copy(self, to: int, source: int, size: int, to_device: bool, from_device: bool) -> None:
        assert not to_device or self.holds(to, size), "a copy to memory that is not the GPU's"
        assert not from_device or self.holds(source, size), "a copy from memory that is not the GPU's"
        ctypes.memmove(to, source, size)

    def cuMemcpyHtoDAsync(self, to: int, source: int, size: int, stream: int) -> tuple[Any, ...]:
        said = self._called("cuMemcpyHtoDAsync")
        assert self.holds(source, size, "host"), "an asynchronous copy needs pinned memory"
        self.enqueue(stream, lambda: self._copy(to, source, size, True, False))
        return (said,)

    def cuMemcpyDtoHAsync(self, to: int, source: int, size: int, stream: int) -> tuple[Any, ...]:
        said = self._called("cuMemcpyDtoHAsync")
        assert self.holds(to, size, "host"), "an asynchronous copy needs pinned memory"
        self.enqueue(stream, lambda: self._copy(to, source, size, False, True))
        return (said,)

    def cuMemcpyDtoDAsync(self, to: int, source: int, size: int, stream: int) -> tuple[Any, ...]:
        said = self._called("cuMemcpyDtoDAsync")
        self.enqueue(stream, lambda: self._copy(to, source, size, True, True))
        return (said,)

    def cuMemcpyDtoH(self, to: int, source: int, size: int) -> tuple[Any, ...]:
        said = self._called("cuMemcpyDtoH", waits=True)
        with self._lock:
            self._drain(0)
            self._copy(to, source, size, False, True)
        return (said,)

    def cuMemcpyHtoD(self, to: int, source: int, size: int) -> tuple[Any, ...]:
        said = self._called("cuMemcpyHtoD", waits=True)
        with self._lock:
            self._copy(to, source, size, True, False)
        return (said,)

    # Streams and events.
    def enqueue(self, stream: int, op: Op) -> None:
        """Put an operation on a stream, or into the graph that it captures."""
        with self._lock:
            captured = self._capturing.get(int(stream))
            if captured is not None:
                captured.ops.append(op)
                return
            self._queues[int(stream)].append(op)
            self._issued[int(stream)] += 1

    def captures(self, stream: int) -> Graph | None:
        """What a stream captures into."""
        return self._capturing.get(int(stream))

    def _drain(self, stream: int, until: int | None = None) -> None:
        until = self._issued[stream] if until is None else until
        while self._finished[stream] < until:
            self._finished[stream] += 1
            self._queues[stream].popleft()()

    def new_stream(self) -> int:
        """As `cuStreamCreate`, for a caller."""
        number = next(self._numbers)
        self._queues[number] = deque()
        return number

    def cuStreamCreate(self, flags: int) -> tuple[Any, ...]:
        assert flags == 1
        return self._called("cuStreamCreate"), self.new_stream()

    def cuStreamDestroy(self, stream: int) -> tuple[Any, ...]:
        with self._lock:
            self._drain(stream)
            del self._queues[stream]
        return OK

    def cuStreamSynchronize(self, stream: int) -> tuple[Any, ...]:
        said = self._called("cuStreamSynchronize", waits=True)
        with self._lock:
            self._drain(int(stream))
        return (said,)

    def cuStreamQuery(self, stream: int) -> tuple[Any, ...]:
        self._called("cuStreamQuery")
        with self._lock:
            empty = self._finished[int(stream)] == self._issued[int(stream)]
        return (CUresult.CUDA_SUCCESS if empty else CUresult.CUDA_ERROR_NOT_READY,)

    def cuEventCreate(self, flags: int) -> tuple[Any, ...]:
        assert flags == 2
        number = next(self._numbers)
        return self._called("cuEventCreate"), number

    def cuEventDestroy(self, event: int) -> tuple[Any, ...]:
        self._events.pop(event, None)
        return OK

    def cuEventRecord(self, event: int, stream: int) -> tuple[Any, ...]:
        said = self._called("cuEventRecord")
        with self._lock:
            self._events[event] = (int(stream), self._issued[int(stream)])
        return (said,)

    def cuEventSynchronize(self, event: int) -> tuple[Any, ...]:
        said = self._called("cuEventSynchronize", waits=True)
        with self._lock:
            self._drain(*self._events[event])
        return (said,)

    def cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> tuple[Any, ...]:
        said = self._called("cuStreamWaitEvent")
        with self._lock:
            recorded = self._events.get(event)
            if recorded is not None:
                self.enqueue(stream, lambda: self._drain(*recorded))
        return (said,)

    # Graphs.
    def cuStreamBeginCapture(self, stream: int, mode: int) -> tuple[Any, ...]:
        said = self._called("cuStreamBeginCapture")
        assert int(stream) > 2, "a default stream cannot be captured"
        self._lock.acquire()  # nobody else may be told that a stream captures
        self._capturing[int(stream)] = Graph(next(self._numbers), [])
        return (said,)

    def cuStreamEndCapture(self, stream: int) -> tuple[Any, ...]:
        said = self._called("cuStreamEndCapture")
        graph = self._capturing.pop(int(stream))
        self._lock.release()
        return (CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, 0) if graph.broken else (said, graph)

    def cuGraphInstantiate(self, graph: Graph, flags: int) -> tuple[Any, ...]:
        return self._called("cuGraphInstantiate"), graph

    def cuGraphDestroy(self, graph: Graph) -> tuple[Any, ...]:
        return OK

    def cuGraphExecDestroy(self, graph: Graph) -> tuple[Any, ...]:
        self.counts["cuGraphExecDestroy"] += 1
        return OK

    def cuGraphLaunch(self, graph: Graph, stream: int) -> tuple[Any, ...]:
        said = self._called("cuGraphLaunch")
        with self._lock:
            for op in graph.ops:
                self.enqueue(stream, op)
        return (said,)


def install(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Cuda:
    """Put the GPU where `from cuda.bindings import driver` finds it."""
    cuda = Cuda(**settings)
    monkeypatch.setattr(runtime, "_loaded", {})
    package: Any = ModuleType("cuda.bindings")
    package.driver = cuda
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", package)
    return cuda
