"""The calls of the CUDA driver that running an engine needs, on one GPU.

Addresses are integers, handles what cuda-bindings makes of them; 0 is the default stream. Every method raises
EngineError with what the driver says, and needs the GPU's context to be current: `with gpu:`.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np

from aot.errors import EngineError, TargetError
from aot.runtime.driver import bindings, check, start

Handle = Any
Array = np.ndarray[Any, Any]
ALIGNED = 256
"""Bytes that an address is a multiple of where TensorRT takes it as it is."""


def rounded(size: int) -> int:
    """The least multiple of ALIGNED that holds so many bytes."""
    return -(-size // ALIGNED) * ALIGNED


class Gpu:
    """One GPU, by CUDA's number. name: the product's. target: `sm90`, ...

    allocated, pinned: bytes that were asked for and not given back, on the GPU and of the host's memory.
    Raises EngineError where there is no driver, and TargetError where there is no GPU of that number.
    """

    def __init__(self, device: int) -> None:
        self.device = device
        self.allocated = self.pinned = 0
        self._driver = driver = bindings()
        self._counting = threading.Lock()
        self._entered = threading.local()
        start(driver)
        status, count = driver.cuDeviceGetCount()
        check(driver, status, "the CUDA driver does not count its GPUs")
        if not 0 <= device < count:
            raise TargetError(
                f"there is no GPU {device}: CUDA sees {count or 'none'}",
                fix="CUDA_VISIBLE_DEVICES says which ones it sees",
            )
        status, self._handle = driver.cuDeviceGet(device)
        check(driver, status, f"GPU {device} cannot be opened")
        status, name = driver.cuDeviceGetName(96, self._handle)
        check(driver, status, f"GPU {device} has no name")
        self.name = name.split(b"\0", 1)[0].decode()
        kinds = driver.CUdevice_attribute
        numbers = [
            self._value(*driver.cuDeviceGetAttribute(kind, self._handle))
            for kind in (
                kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        ]
        self.target = "sm" + "".join(map(str, numbers))
        status, self._context = driver.cuDevicePrimaryCtxRetain(self._handle)
        check(driver, status, f"GPU {device} gives no context")
        self._identity = int(self._context)

    def __str__(self) -> str:
        return f"{self.name} ({self.target})"

    def _value(self, status: Any, value: Any) -> Any:
        if status:
            check(self._driver, status, f"the CUDA driver refuses on GPU {self.device}")
        return value

    def _done(self, status: Any) -> None:
        if status:
            check(self._driver, status, f"the CUDA driver refuses on GPU {self.device}")

    def enter(self) -> bool:
        """Make its context the current one of this thread; whether `leave` must follow, for it was not."""
        status, current = self._driver.cuCtxGetCurrent()
        if not status and int(current) == self._identity:
            return False
        self._done(*self._driver.cuCtxPushCurrent(self._context))
        return True

    def leave(self) -> None:
        """The context before is the current one again."""
        self._driver.cuCtxPopCurrent()

    def __enter__(self) -> None:
        """As `enter`, until the end of the block."""
        pushed = self.enter()
        if not hasattr(self._entered, "stack"):
            self._entered.stack = []
        self._entered.stack.append(pushed)

    def __exit__(self, *_: object) -> None:
        if self._entered.stack.pop():
            self.leave()

    def close(self) -> None:
        """Give the context back; what was allocated in it must be freed."""
        self._driver.cuDevicePrimaryCtxRelease(self._handle)

    def allocate(self, size: int) -> int:
        """Memory on the GPU; aligned to ALIGNED at least."""
        status, address = self._driver.cuMemAlloc(size)
        check(self._driver, status, f"GPU {self.device} has no {size:,} bytes")
        self._count(size, 0)
        return int(address)

    def free(self, address: int, size: int) -> None:
        """Give memory on the GPU back; waits until the GPU is done with it."""
        self._done(*self._driver.cuMemFree(address))
        self._count(-size, 0)

    def allocate_pinned(self, size: int) -> tuple[int, Array]:
        """Memory of the host that the GPU reads and writes by itself: its address, and its bytes as an array."""
        status, address = self._driver.cuMemHostAlloc(size, 0)
        check(self._driver, status, f"the host has no {size:,} bytes to pin")
        self._count(0, size)
        return int(address), np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(int(address)))

    def free_pinned(self, address: int, size: int) -> None:
        """Give such memory back; its array must not be used any more."""
        self._done(*self._driver.cuMemFreeHost(address))
        self._count(0, -size)

    def _count(self, device: int, host: int) -> None:
        with self._counting:
            self.allocated += device
            self.pinned += host

    def to_device(self, address: int, host: int, size: int, stream: Handle) -> None:
        """Enqueue a copy from the host, which reads pinned memory when it is its turn."""
        (status,) = self._driver.cuMemcpyHtoDAsync(address, host, size, stream)
        if status:
            self._done(status)

    def to_host(self, host: int, address: int, size: int, stream: Handle) -> None:
        """Enqueue a copy into pinned memory."""
        (status,) = self._driver.cuMemcpyDtoHAsync(host, address, size, stream)
        if status:
            self._done(status)

    def copy(self, address: int, source: int, size: int, stream: Handle) -> None:
        """Enqueue a copy within the GPU."""
        (status,) = self._driver.cuMemcpyDtoDAsync(address, source, size, stream)
        if status:
            self._done(status)

    def read(self, address: int, size: int) -> Array:
        """Bytes of the GPU's memory, once what was enqueued before on the default stream is over."""
        made = np.empty(size, np.uint8)
        if size:
            self._done(*self._driver.cuMemcpyDtoH(made.ctypes.data, address, size))
        return made

    def write(self, address: int, array: Array) -> None:
        """Write bytes into the GPU's memory, and wait for it."""
        if array.nbytes:
            self._done(*self._driver.cuMemcpyHtoD(address, array.ctypes.data, array.nbytes))

    def stream(self) -> Handle:
        """A stream that does not wait for the default one."""
        return self._value(*self._driver.cuStreamCreate(int(self._driver.CUstream_flags.CU_STREAM_NON_BLOCKING)))

    def handle(self, stream: int) -> Handle:
        """The handle of a stream that someone else made."""
        return self._driver.CUstream(stream)

    def destroy_stream(self, stream: Handle) -> None:
        """Destroy a stream of `stream`, once what is on it is over."""
        self._done(*self._driver.cuStreamDestroy(stream))

    def wait(self, stream: Handle) -> None:
        """Let the host wait until a stream is empty. What went wrong in it is raised here."""
        (status,) = self._driver.cuStreamSynchronize(stream)
        if status:
            self.failed(status)

    def idle(self, stream: Handle) -> bool:
        """Whether a stream is empty."""
        (status,) = self._driver.cuStreamQuery(stream)
        return getattr(status, "name", "") != "CUDA_ERROR_NOT_READY"

    def event(self) -> Handle:
        """An event that keeps no time."""
        return self._value(*self._driver.cuEventCreate(int(self._driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)))

    def record(self, event: Handle, stream: Handle) -> None:
        """The event happens when what is on the stream now is over."""
        (status,) = self._driver.cuEventRecord(event, stream)
        if status:
            self._done(status)

    def wait_for(self, stream: Handle, event: Handle) -> None:
        """What is enqueued from now on begins after the event."""
        (status,) = self._driver.cuStreamWaitEvent(stream, event, 0)
        if status:
            self._done(status)

    def reach(self, event: Handle) -> None:
        """Let the host wait for an event."""
        (status,) = self._driver.cuEventSynchronize(event)
        if status:
            self.failed(status)

    def destroy_event(self, event: Handle) -> None:
        """Destroy an event of `event`."""
        self._done(*self._driver.cuEventDestroy(event))

    def settle(self) -> None:
        """Wait until everything on the GPU is over."""
        (status,) = self._driver.cuCtxSynchronize()
        if status:
            self.failed(status)

    def failed(self, status: Any) -> None:
        """Raise EngineError for what went wrong while the GPU worked; its context is of no use any more."""
        try:
            check(self._driver, status, "the engine failed on the GPU")
        except EngineError as error:
            raise EngineError(
                error.what, fix="start the process anew: CUDA does not go on in this one after such an error"
            ) from None

    def begin_capture(self, stream: Handle) -> None:
        """From now on, what this thread enqueues on the stream is written down in place of being done."""
        modes = self._driver.CUstreamCaptureMode
        self._done(*self._driver.cuStreamBeginCapture(stream, modes.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))

    def end_capture(self, stream: Handle) -> Handle | None:
        """What was written down, ready to be launched; None where something in it cannot be."""
        status, graph = self._driver.cuStreamEndCapture(stream)
        if status or not int(graph):
            return None
        status, made = self._driver.cuGraphInstantiate(graph, 0)
        self._driver.cuGraphDestroy(graph)
        return None if status else made

    def launch(self, graph: Handle, stream: Handle) -> None:
        """Enqueue all that a graph holds."""
        (status,) = self._driver.cuGraphLaunch(graph, stream)
        if status:
            self.failed(status)

    def destroy_graph(self, graph: Handle) -> None:
        """Destroy a graph of `end_capture`; what of it runs goes on."""
        self._done(*self._driver.cuGraphExecDestroy(graph))
