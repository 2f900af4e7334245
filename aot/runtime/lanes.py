"""Lanes: a stream, and what runs on it. One call at a time has a lane, and calls on different ones run at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from aot.errors import EngineError, InputError
from aot.runtime.cuda import ALIGNED, Handle
from aot.runtime.executor import Call
from aot.runtime.graphs import Graphs
from aot.runtime.interchange import HOST, SOME_GPU, Array, Given, bits
from aot.runtime.kept import KeptOnGpu
from aot.runtime.plan import Context, Plan, Shape, Slot
from aot.runtime.staging import Growing, Place, Staging, make_allocator

DEFAULT_STREAMS = (0, 1, 2)
"""CUDA's handles of the default stream, the legacy and the per-thread one: TensorRT waits for the GPU on these, so that
only graphs go there and other calls take the lane's own stream."""
SHAPES = 1024
Copy = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class Sized:
    """The shapes of a call's inputs and outputs; one for all calls that have them."""

    profile: int
    inputs: Sequence[Shape]
    outputs: tuple[Shape, ...]


class Lane:
    """A stream with its memory, its contexts and its graphs.

    stream: the caller's, None for one of its own. graphs: how many it keeps. The GPU's context must be current.

    key: the caller's stream that it works on. held: the shapes of the outputs of `hold`.
    """

    def __init__(self, plan: Plan, graphs: int, stream: int | None) -> None:
        self._plan, self._gpu = plan, plan.gpu
        self._own = self._gpu.stream()
        self.stream = self._own
        self.key = stream
        self._default = False
        self._event = self._gpu.event()
        self._scratch = self._gpu.allocate(plan.scratch) if plan.scratch else 0
        self._contexts: dict[int, Context] = {}
        self._graphs = Graphs(plan, graphs)
        self._sized: dict[Hashable, Sized] = {}
        self._staging: Staging | None = None
        self._staged = False
        self.held: tuple[Shape, ...] = ()
        self._rooms = {slot.name: Growing(self._gpu) for slot in plan.outputs if slot.unbounded}
        # Every output has a size that is known, and lies on the GPU.
        self._simple = not self._rooms and not any(slot.host for slot in plan.outputs)
        self._allocators = {name: make_allocator(plan.trt, room) for name, room in self._rooms.items()}
        self.move(stream)

    def move(self, stream: int | None) -> None:
        """Work on another stream from now on; what is on the one before must be over."""
        self.key = stream
        self.stream = self._own if stream is None else self._gpu.handle(stream)
        self._default = stream in DEFAULT_STREAMS

    @property
    def unbounded(self) -> bool:
        """Whether an output's size depends on values."""
        return bool(self._rooms)

    @property
    def captured(self) -> int:
        """How many graphs it holds."""
        return len(self._graphs)

    def start(self, call: Call) -> tuple[tuple[Shape, ...], dict[str, Given]]:
        """Enqueue a call, its copies too; (shapes of all outputs, those that lie where the caller has its arrays).

        Raises InputError for an array of another GPU, EngineError as TensorRT does.
        """
        others = self._join(call) if self._staged or call.mixed or call.kept is not None else ()
        copies_in: list[Copy] = []
        copies_out: list[Copy] = []
        made: dict[str, Given] = {}
        addresses, values = self._placed(call, copies_in)
        sized = self._sized.get(call.shapes) or self._measured(call, values)
        on_host = call.like.device == HOST
        if self._simple and not on_host and call.kept is None:
            for slot, shape in zip(self._plan.outputs, sized.outputs, strict=True):
                made[slot.name] = found = call.like.kind.empty(shape, slot.dtype, call.like)
                addresses.append(found.address or self._places[slot.name].device)
        else:
            for slot, shape in zip(self._plan.outputs, sized.outputs, strict=True):
                addresses.append(self._address_out(slot, shape, call, made, copies_out))
        key = (sized, tuple(addresses), tuple(copies_in), on_host)
        graph = self._graphs.find(key)
        if graph is not None:
            self._gpu.launch(graph, self.stream)
        else:
            enqueue = partial(self._enqueue, copies_in, copies_out)
            self._plainly(sized, key, addresses, values, enqueue, self._graphs.wanted(key))
        self._staged = bool(copies_in) and not on_host
        if self._staged:
            self._gpu.record(self._event, self.stream)
        for other in others:  # what comes there may write what the call reads
            self._gpu.record(self._event, self.stream)
            self._gpu.wait_for(other, self._event)
        if call.kept is not None:
            assert isinstance(call.kept, KeptOnGpu)
            call.kept.advance(self.stream)
        return sized.outputs, made

    def _join(self, call: Call) -> list[Handle]:
        """Let the lane's stream wait for whatever else works on what the call reads: the streams, but for its own."""
        if self._staged:
            self._gpu.reach(self._event)  # a copy from pinned memory that is about to be written again
            self._staged = False
        others: list[Handle] = []
        if call.mixed:
            for name, given in call.given.items():  # on their own streams, before these are waited for
                if given.device != HOST and not given.contiguous:
                    call.given[name] = given.kind.whole(given)
            own = None if call.like.device == HOST else call.like.kind  # whose stream this is
            kinds = {given.kind for given in call.given.values() if given.device != HOST and given.kind is not own}
            others = [self._gpu.handle(kind.stream(self._gpu.device)) for kind in kinds]
            for other in others:
                self._gpu.record(self._event, other)
                self._gpu.wait_for(self.stream, self._event)
        if call.kept is not None:
            assert isinstance(call.kept, KeptOnGpu)
            call.kept.join(self.stream)
        return others

    def _placed(self, call: Call, copies: list[Copy]) -> tuple[list[int], dict[str, Array]]:
        """(addresses, values of inputs that TensorRT reads on the host) of all inputs; what must be copied is copied
        into pinned memory, and `copies` gets what brings it to the GPU."""
        addresses: list[int] = []
        values: dict[str, Array] = {}
        for slot in self._plan.inputs:
            given = call.given.get(slot.name)
            if given is None:
                assert isinstance(call.kept, KeptOnGpu)
                addresses.append(call.kept.now(slot.name)[1])
            elif slot.host:
                values[slot.name] = np.ascontiguousarray(given.host())
                addresses.append(values[slot.name].ctypes.data)
            else:
                addresses.append(self._address_in(slot, given, call, copies))
        return addresses, values

    def _address_in(self, slot: Slot, given: Given, call: Call, copies: list[Copy]) -> int:
        if given.device == self._gpu.device and given.contiguous and given.address and not given.address % ALIGNED:
            return given.address
        if given.device == HOST:
            place = self._places[slot.name]
            array: Array = given.host()
            size = array.nbytes
            if size:
                np.copyto(place.bytes[:size].view(array.dtype).reshape(array.shape), array)
                copies.append((place.device, place.host, size))
            return place.device
        if given.device not in (self._gpu.device, SOME_GPU):
            raise InputError(
                f"input '{slot.name}' lies on GPU {given.device}, and the engine runs on GPU {self._gpu.device}",
                fix=f"move it there, or load the artifact with device={given.device}",
            )
        if not given.contiguous:
            given = call.given[slot.name] = given.kind.whole(given)  # held as long as the call
        if given.address and not given.address % ALIGNED:
            return given.address
        place = self._places[slot.name]
        size = prod(given.shape) * slot.itemsize
        if size:
            self._gpu.copy(place.device, given.address, size, self.stream)
        return place.device

    def _address_out(self, slot: Slot, shape: Shape, call: Call, made: dict[str, Given], copies: list[Copy]) -> int:
        if slot.unbounded:
            return 0
        if call.kept is not None and isinstance(call.kept, KeptOnGpu) and call.kept.takes(slot.name):
            return call.kept.after(slot.name)
        if call.like.device == HOST or slot.host:
            place = self._places[slot.name]
            size = prod(shape) * slot.itemsize
            if size and not slot.host:
                copies.append((place.host, place.device, size))
            return place.host if slot.host else place.device
        made[slot.name] = found = call.like.kind.empty(shape, slot.dtype, call.like)
        return found.address or self._places[slot.name].device

    def _measured(self, call: Call, values: dict[str, Array]) -> Sized:
        """The shapes of a call; known from then on, but where values decide."""
        shapes = []
        for slot in self._plan.inputs:
            given = call.given.get(slot.name)
            if given is None:
                assert isinstance(call.kept, KeptOnGpu)
                shapes.append(call.kept.now(slot.name)[0])
            else:
                shapes.append(tuple(given.shape))
        context = self._context(call.profile)
        context.shape(shapes, values)
        found = context.output_shapes([slot.name for slot in self._plan.outputs])
        made = Sized(call.profile, shapes, tuple(found.values()))
        if not values:
            if len(self._sized) >= SHAPES:
                self._sized.clear()
            self._sized[call.shapes] = made
        return made

    def _context(self, profile: int) -> Context:
        context = self._contexts.get(profile)
        if context is None:
            context = self._contexts[profile] = Context(self._plan, profile, self._scratch, self._own)
            self._gpu.wait(self._own)  # until the profile is chosen
            for name, allocator in self._allocators.items():
                context.allocate_by(name, allocator)
        return context

    def _plainly(
        self, sized: Sized, key: Any, addresses: list[int], values: dict[str, Array], enqueue: Any, capture: bool
    ) -> None:
        """Enqueue without a graph; with `capture` in a context of its own, which is captured then."""
        if capture:
            context = Context(self._plan, sized.profile, self._scratch, self._own)
            self._gpu.wait(self._own)
        else:
            context = self._context(sized.profile)
        context.shape(sized.inputs, values)
        context.address(addresses)
        self._bracketed(partial(enqueue, context))
        if capture:
            self._graphs.capture(key, context, partial(enqueue, context), self._own)

    def _bracketed(self, enqueue: Callable[[Handle], None]) -> None:
        """Enqueue on the lane's stream, or in its order on another one where it is a default stream."""
        if not self._default:
            enqueue(self.stream)
            return
        self._gpu.record(self._event, self.stream)
        self._gpu.wait_for(self._own, self._event)
        enqueue(self._own)
        self._gpu.record(self._event, self._own)
        self._gpu.wait_for(self.stream, self._event)

    def hold(self, call: Call) -> Callable[[], None]:
        """Put a call's inputs where the engine reads them, run it once, and return what runs it again.

        Outputs stay in the lane's own places; nothing else may use the lane.
        """
        self._join(call)
        copies: list[Copy] = []
        addresses, values = self._placed(call, copies)
        sized = self._measured(call, values)
        for slot in self._plan.outputs:
            place = self._places[slot.name]
            addresses.append(0 if slot.unbounded else place.host if slot.host else place.device)
        for address, source, size in copies:
            self._gpu.to_device(address, source, size, self.stream)
        enqueue = partial(self._enqueue, (), ())
        self._plainly(sized, sized, addresses, values, enqueue, self._plan.captures)
        self.held = sized.outputs
        graph = self._graphs.find(sized)
        if graph is not None:
            return partial(self._gpu.launch, graph, self.stream)
        context = self._context(call.profile)
        context.shape(sized.inputs, values)
        context.address(addresses)
        return partial(self._bracketed, partial(enqueue, context))

    def _enqueue(self, copies_in: Sequence[Copy], copies_out: Sequence[Copy], context: Context, stream: Handle) -> None:
        for address, source, size in copies_in:
            self._gpu.to_device(address, source, size, stream)
        context.enqueue(stream)
        for address, source, size in copies_out:
            self._gpu.to_host(address, source, size, stream)

    @property
    def _places(self) -> Mapping[str, Place]:
        if self._staging is None:
            self._staging = Staging(self._gpu, [*self._plan.inputs, *self._plan.outputs])
        return self._staging.places

    def done(self) -> bool:
        """Whether all that was enqueued is over."""
        return self._gpu.idle(self.stream)

    def wait(self) -> None:
        """Until all that was enqueued is over. Raises EngineError for what went wrong, with what TensorRT logged."""
        try:
            self._gpu.wait(self.stream)
        except EngineError as error:
            raise EngineError(f"{error.what}; {self._plan.told()}", fix=error.fix) from None

    def taken(self, slot: Slot, shape: Shape) -> Array:
        """A copy of an output that was copied to the host, elements by their `bits`; once it is there."""
        size = prod(shape) * slot.itemsize
        copy: Array = self._places[slot.name].bytes[:size].view(bits(slot.dtype)).reshape(shape).copy()
        return copy

    def fetched(self, slot: Slot, shape: Shape, like: Given) -> Any:
        """A copy of an output that lies in the lane's memory, where `like` is; once all is over."""
        room = self._rooms.get(slot.name)
        if room is not None:
            shape, address = room.shape, room.address
        elif slot.host:
            return like.kind.made(self.taken(slot, shape), slot.dtype, like)
        else:
            address = self._places[slot.name].device
        size = prod(shape) * slot.itemsize
        if like.device == HOST:
            raw = self._gpu.read(address, size)
            return like.kind.made(raw.view(bits(slot.dtype)).reshape(shape), slot.dtype, like)
        made = like.kind.empty(shape, slot.dtype, like)
        if size:
            self._gpu.copy(made.address, address, size, self.stream)
        return made.value

    def settle(self) -> None:
        """Until everything on the GPU is over, whose stream it may be on."""
        self._gpu.settle()

    def close(self) -> None:
        """Give everything back, once it is over."""
        self._gpu.settle()
        self._graphs.close()
        self._contexts.clear()
        if self._staging is not None:
            self._staging.close()
        for room in self._rooms.values():
            room.close()
        if self._scratch:
            self._gpu.free(self._scratch, self._plan.scratch)
        self._gpu.destroy_event(self._event)
        self._gpu.destroy_stream(self._own)
