"""Calls that are on the GPU: their outputs, when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aot.runtime.executor import Call
from aot.runtime.interchange import HOST
from aot.runtime.kept import KeptOnGpu
from aot.runtime.lanes import Lane
from aot.runtime.plan import Slot


class Started:
    """A call that was enqueued on a lane, which it needs until its outputs were taken. waits: whether that waits for
    the GPU; it does not where all outputs lie where the caller has its arrays."""

    def __init__(self, lane: Lane, call: Call) -> None:
        self._lane, self._call = lane, call
        self._shapes, self._made = lane.start(call)
        self.waits = call.like.device == HOST or lane.unbounded

    def outputs(self, slots: Sequence[Slot]) -> dict[str, Any]:
        """The outputs by name, without states that are kept. Raises EngineError for what went wrong on the GPU."""
        call, lane = self._call, self._lane
        if len(self._made) == len(slots):
            return {name: given.value for name, given in self._made.items()}
        if self.waits:
            lane.wait()
        found: dict[str, Any] = {}
        for slot, shape in zip(slots, self._shapes, strict=True):
            if slot.name in self._made:
                found[slot.name] = self._made[slot.name].value
            elif isinstance(call.kept, KeptOnGpu) and call.kept.takes(slot.name):
                continue
            elif slot.unbounded:
                found[slot.name] = lane.fetched(slot, shape, call.like)
            else:
                found[slot.name] = call.like.kind.made(lane.taken(slot, shape), slot.dtype, call.like)
        return found
