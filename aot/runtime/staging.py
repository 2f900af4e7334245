"""Room for inputs and outputs: on the GPU, and pinned on the host for what comes from there and goes there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aot.errors import EngineError
from aot.runtime.cuda import Gpu, rounded
from aot.runtime.interchange import Array
from aot.runtime.plan import Slot


@dataclass(frozen=True)
class Place:
    """Where an input or output is: on the GPU, and its pinned bytes on the host with their address."""

    device: int
    host: int
    bytes: Array


class Staging:
    """A place for every input and output at its largest, in one piece of memory on either side."""

    def __init__(self, gpu: Gpu, slots: Sequence[Slot]) -> None:
        self._gpu = gpu
        sizes = [rounded(max(slot.most, 1)) for slot in slots]
        self._size = sum(sizes)
        self._device = gpu.allocate(self._size)
        self._host, array = gpu.allocate_pinned(self._size)
        self.places: dict[str, Place] = {}
        at = 0
        for slot, size in zip(slots, sizes, strict=True):
            self.places[slot.name] = Place(self._device + at, self._host + at, array[at : at + size])
            at += size

    def close(self) -> None:
        """Give the memory back."""
        self._gpu.free(self._device, self._size)
        self._gpu.free_pinned(self._host, self._size)


class Growing:
    """Memory on the GPU for one output whose size its values decide; it only grows."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.address = self.size = 0
        self.shape: tuple[int, ...] = ()

    def room(self, size: int) -> int:
        """The address of so many bytes; what was there before may be gone."""
        if size > self.size or not self.address:
            self.close()
            wanted = rounded(max(size, 2 * self.size, 1))
            self.address, self.size = self._gpu.allocate(wanted), wanted
        return self.address

    def close(self) -> None:
        """Give the memory back."""
        if self.address:
            self._gpu.free(self.address, self.size)
        self.address = 0


def make_allocator(trt: Any, room: Growing) -> Any:
    """An IOutputAllocator over such memory; the type exists only once the module is imported."""

    class Allocator(trt.IOutputAllocator):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)

        def reallocate_output(self, tensor_name: str, memory: int, size: int, alignment: int) -> int:
            try:
                return room.room(size)
            except EngineError:  # no exception travels through C++; without memory TensorRT says what fails
                return 0

        def reallocate_output_async(self, tensor_name: str, memory: int, size: int, alignment: int, stream: int) -> int:
            return self.reallocate_output(tensor_name, memory, size, alignment)

        def notify_shape(self, tensor_name: str, shape: Any) -> None:
            room.shape = tuple(shape)

    return Allocator()
