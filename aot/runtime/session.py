"""An artifact that is loaded, ready to be called."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from aot.errors import UsageError
from aot.runtime.calls import Reader, named
from aot.runtime.executor import Binding, Executor, closed
from aot.runtime.interchange import NUMPY, Array, bits
from aot.runtime.manifest import Manifest, Tensor
from aot.runtime.pending import Pending
from aot.runtime.state import Stream

ENOUGH = 3
"""Calls until the next is as fast as any: the first, the second, which captures, and the first launch of that."""


class Bound:
    """A call whose inputs and outputs stay where the engine has them: what is left is the engine's own time.

    Made by `Session.bound`, for one thread at a time. Arrays of the host were copied; those of a GPU that the engine
    takes as they are stay the caller's, and what is in them when a run begins is what it reads.
    """

    def __init__(self, binding: Binding) -> None:
        self._binding = binding

    def run(self) -> None:
        """Enqueue it once, without waiting."""
        self._binding.run()

    def synchronize(self) -> None:
        """Wait until every run is over. Raises EngineError for what went wrong in one."""
        self._binding.synchronize()

    def outputs(self) -> dict[str, Any]:
        """Wait, and copy the outputs of the last run, of the inputs' kind."""
        return self._binding.outputs()

    def close(self) -> None:
        """Give its memory back."""
        self._binding.close()

    def __enter__(self) -> Bound:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Session:
    """A loaded artifact: `session(inputs) -> outputs`. Made by `aot.load`.

    Thread-safe: calls of several threads run at once, each in a context of its own. Every array that is returned is
    the caller's. After `close`, or outside of its `with` block, it cannot be called.

    label: what runs, for people: `engine sm90 (tensorrt 10.6.0)`, `final graph, fp8 (onnxruntime 1.32.0, cpu)`.
    inputs, outputs: dtype and shape by name, in the model's order. manifest: what the artifact says of itself.
    """

    def __init__(self, manifest: Manifest, executor: Executor, label: str) -> None:
        self.label = label
        self.inputs: Mapping[str, Tensor] = MappingProxyType(dict(manifest.inputs))
        self.outputs: Mapping[str, Tensor] = MappingProxyType(dict(manifest.outputs))
        self.manifest, self._executor = manifest, executor
        self._reader = Reader(manifest)
        self._own = Stream(manifest, self._reader, executor)
        self._closed = False

    def __call__(self, inputs: Mapping[str, Any] | None = None, /, **more: Any) -> dict[str, Any]:
        """Run once: inputs by name, as a mapping or keywords; the outputs by name, of the kind of the first input.

        numpy arrays and torch tensors on the CPU come back whole. Arrays of a GPU are read in the order of the caller's
        current stream, in place where they fit, and what comes back is ready in that order, as torch does it.
        States that are left out are kept (see `Stream`).

        Raises InputError for a name, dtype or shape that the model does not take, and EngineError for what goes wrong
        while it runs.
        """
        self._ensure_open()
        if self._reader.states:
            return self._own(inputs, **more)
        return self._executor.run(self._reader.read(named(inputs, more))[0])

    def submit(self, inputs: Mapping[str, Any] | None = None, /, **more: Any) -> Pending:
        """Begin a call, and return at once. Its inputs must not be changed before `result()`. Raises as a call does."""
        self._ensure_open()
        if self._reader.states:
            return self._own.submit(inputs, **more)
        return self._executor.submit(self._reader.read(named(inputs, more))[0])

    def bound(self, inputs: Mapping[str, Any] | None = None, /, **more: Any) -> Bound:
        """Put inputs where the engine has them, to run on them again and again. Raises as a call does.

        States that are left out are what the model starts with, in every run.
        """
        self._ensure_open()
        given = named(inputs, more)
        if self._reader.leaves_out(given):
            _, sizes = self._reader.read(given, {})
            first = self._own.first(sizes).items()
            given = {**given, **{name: NUMPY.made(a, self.inputs[name].dtype, NUMPY.look(a)) for name, a in first}}
        return Bound(self._executor.bind(self._reader.read(given)[0]))

    def stream(self) -> Stream:
        """A sequence of calls with states of its own. The session's own calls are one as well."""
        self._ensure_open()
        return Stream(self.manifest, self._reader, self._executor)

    def reset(self, values: Mapping[str, Any] | None = None) -> None:
        """See Stream.reset, of the session's own calls."""
        self._ensure_open()
        self._own.reset(values)

    def state(self) -> dict[str, Array]:
        """See Stream.state, of the session's own calls."""
        self._ensure_open()
        return self._own.state()

    def warm_up(self, *sizes: Mapping[str, int], callers: int = 1) -> None:
        """Make the first call as fast as the hundredth: memory, contexts, CUDA graphs and staging for these sizes.

        sizes: of Dims by name, those left out at their optimum; none: the optimum of every profile. callers: how many
        calls will run at once. Inputs are zeros, or the least value that the model declares. States stay as they are.

        Raises UsageError for an unknown Dim or callers below 1, InputError for sizes that no profile holds.
        """
        self._ensure_open()
        if not isinstance(callers, int) or callers < 1:
            raise UsageError(f"callers={callers!r}: they are counted from 1", fix="leave it out for one at a time")
        profiles = [{dim: opt for dim, (_, opt, _) in profile.items()} for profile in self.manifest.profiles]
        for one in sizes or profiles:
            feed = self._inputs_of(self._reader.signature.complete(one))
            for _ in range(ENOUGH):
                pending = [self._executor.submit(self._reader.read(feed)[0]) for _ in range(callers)]
                for call in pending:
                    call.result()
            if self._reader.states:
                free = {name: array for name, array in feed.items() if name not in self._reader.states}
                self._own.warm(free, 2 * ENOUGH)  # states change places with every call

    def _inputs_of(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        shapes = {name: self._reader.signature.shape(name, sizes) or () for name in self.inputs}
        self._reader.signature.fit(shapes)  # before memory is taken for them
        made: dict[str, Any] = {}
        for name, tensor in self.inputs.items():
            array = np.full(shapes[name], self.manifest.lows.get(name, 0), bits(tensor.dtype))
            made[name] = NUMPY.made(array, tensor.dtype, NUMPY.look(array))
        return made

    def memory(self) -> dict[str, int]:
        """{device_bytes, host_bytes}: what the session holds: the plan or graph, contexts, inputs and outputs."""
        return self._executor.memory()

    def close(self) -> None:
        """Wait for calls that are not over, and give everything back. Nothing happens the second time."""
        if not self._closed:
            self._closed = True
            self._own.close()
            self._executor.close()

    def _ensure_open(self) -> None:
        if self._closed:
            raise closed(self.label)

    def __enter__(self) -> Session:
        self._ensure_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<aot.runtime.Session {self.manifest.name}: {self.label}>"
