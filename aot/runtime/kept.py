"""States on the GPU: two places for each, which change places with every call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

import numpy as np

from aot.runtime.cuda import Gpu, Handle, rounded
from aot.runtime.executor import Kept
from aot.runtime.interchange import Array


class KeptOnGpu(Kept):
    """The states of one sequence of calls. outputs: input by the name of the output that is its next value. closed: is
    told when their memory is given back.

    A call reads one place and writes the other: TensorRT does not promise that an output may lie where an input is.
    """

    def __init__(
        self, gpu: Gpu, values: Mapping[str, Array], outputs: Mapping[str, str], closed: Callable[[KeptOnGpu], None]
    ) -> None:
        self._gpu, self._outputs, self._closed = gpu, dict(outputs), closed
        self._values = {name: (value.shape, value.dtype) for name, value in values.items()}
        self._at: dict[str, int] = {}
        half = 0
        for name, value in values.items():
            self._at[name] = half
            half += rounded(max(value.nbytes, 1))
        self._half, self._turn = half, 0
        self._last: int | None = None
        with gpu:
            self._base = gpu.allocate(2 * half)
            self._event = gpu.event()
        self.write(values)

    def takes(self, output: str) -> bool:
        """Whether an output is a state's next value."""
        return output in self._outputs

    def now(self, name: str) -> tuple[tuple[int, ...], int]:
        """The shape and the address of a state."""
        return self._values[name][0], self._base + self._turn * self._half + self._at[name]

    def after(self, output: str) -> int:
        """Where an output must go that is a state's next value."""
        return self._base + (1 - self._turn) * self._half + self._at[self._outputs[output]]

    def join(self, stream: Handle) -> None:
        """Let a stream wait for the call before, where that is on another."""
        if self._last is not None and self._last != int(stream):
            self._gpu.wait_for(stream, self._event)

    def advance(self, stream: Handle) -> None:
        """A call was enqueued: what it writes is the state from now on."""
        self._turn = 1 - self._turn
        self._last = int(stream)
        self._gpu.record(self._event, stream)

    def read(self) -> dict[str, Array]:
        """See Kept.read."""
        with self._gpu:
            if self._last is not None:
                self._gpu.reach(self._event)
            return {
                name: self._gpu.read(self.now(name)[1], dtype.itemsize * prod(shape)).view(dtype).reshape(shape)
                for name, (shape, dtype) in self._values.items()
            }

    def write(self, values: Mapping[str, Array]) -> None:
        """See Kept.write."""
        with self._gpu:
            if self._last is not None:
                self._gpu.reach(self._event)
            for name, value in values.items():
                self._gpu.write(self.now(name)[1], np.ascontiguousarray(value))

    def close(self) -> None:
        """See Kept.close. Nothing happens the second time."""
        if not self._base:
            return
        self._closed(self)
        with self._gpu:
            if self._last is not None:
                self._gpu.reach(self._event)
            self._gpu.free(self._base, 2 * self._half)
            self._gpu.destroy_event(self._event)
        self._base = 0
