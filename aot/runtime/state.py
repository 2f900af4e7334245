"""Inputs that are fed back: what a call leaves in them the next call takes, and they stay where the engine is."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from aot.errors import InputError, UsageError, unknown
from aot.runtime.calls import Reader, named
from aot.runtime.executor import Call, Executor, Kept
from aot.runtime.interchange import Array, bits, kind_of
from aot.runtime.manifest import Manifest
from aot.runtime.pending import Pending
from aot.runtime.signature import Shape

T = TypeVar("T")


class Stream:
    """One sequence of calls, each of which takes the states that the call before it left.

    Made by `Session.stream`. Threads may share one; its calls then come one after the other, in the order in which they
    began. Streams do not disturb each other. A call that is given the states leaves those of the stream alone.
    """

    def __init__(self, manifest: Manifest, reader: Reader, executor: Executor) -> None:
        self._manifest, self._reader, self._executor = manifest, reader, executor
        self._lock = threading.Lock()
        self._kept: Kept | None = None
        self._shapes: dict[str, Shape] = {}
        self._begun = False

    def __call__(self, inputs: Mapping[str, Any] | None = None, /, **more: Any) -> dict[str, Any]:
        """See Session.__call__; the outputs are without the states that are kept."""
        return self._step(named(inputs, more), self._executor.run)

    def submit(self, inputs: Mapping[str, Any] | None = None, /, **more: Any) -> Pending:
        """See Session.submit. The next call may begin before this one is over."""
        return self._step(named(inputs, more), self._executor.submit)

    def reset(self, values: Mapping[str, Any] | None = None) -> None:
        """Begin anew: from what the model starts with, or from these states by name, such as `state` gave.

        Raises InputError for states that the model does not have, of another dtype or shape, or not all of them.
        """
        self._executor.ensure_open()
        if values is not None and not isinstance(values, Mapping):
            raise InputError(f"states come by name, not as a {type(values).__name__}", fix=self._says())
        arrays = {name: _array(name, value) for name, value in (values or {}).items()}
        for name in arrays:
            if name not in self._reader.states:
                raise UsageError(unknown("state", str(name), self._reader.states).what, fix=self._says())
        missing = [name for name in self._reader.states if name not in arrays]
        if values is not None and missing:
            raise InputError(f"the state '{missing[0]}' is missing", fix=self._says())
        for name, (_, dtype) in arrays.items():
            wanted = self._manifest.inputs[name].dtype
            if dtype != wanted:
                raise InputError(f"the state '{name}' is {dtype}, and the model takes {wanted}", fix=self._says())
        self._reader.signature.fit({name: array.shape for name, (array, _) in arrays.items()})
        with self._lock:
            self._begun = False
            if arrays:
                self._begin({name: array for name, (array, _) in arrays.items()})

    def state(self) -> dict[str, Array]:
        """Copies of the states by name of their inputs, as numpy arrays; empty before the first call."""
        self._executor.ensure_open()
        with self._lock:
            found = self._kept.read() if self._kept is not None and self._begun else {}
        made = {}
        for name, array in found.items():
            seen = kind_of(array).look(array)
            made[name] = seen.kind.made(array, self._manifest.inputs[name].dtype, seen)
        return made

    def close(self) -> None:
        """Give the states' memory back."""
        with self._lock:
            self._forget()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._forget()

    def _step(self, inputs: Mapping[str, Any], act: Callable[[Call], T]) -> T:
        if not self._reader.leaves_out(inputs):
            return act(self._reader.read(inputs)[0])
        with self._lock:
            call, sizes = self._reader.read(inputs, self._shapes if self._begun else {})
            if not self._begun:
                self._begin(self.first(sizes))
            self._give(call)
            return act(call)

    def warm(self, inputs: Mapping[str, Any], times: int) -> None:
        """Run so many calls, and put the states back; not where the states have begun at other sizes."""
        with self._lock:
            call, sizes = self._reader.read(inputs, {})
            values = self.first(sizes)
            begun = self._begun
            if begun and self._shapes != {name: value.shape for name, value in values.items()}:
                return
            if begun:
                assert self._kept is not None
                values = self._kept.read()
            self._begin(values)
            self._give(call)
            for _ in range(times):
                self._executor.run(call)
            self._begin(values)
            self._begun = begun

    def _give(self, call: Call) -> None:
        call.kept = self._kept
        call.shapes = (call.shapes, *self._shapes.values())

    def _begin(self, values: dict[str, Array]) -> None:
        """Have these states, in the memory of those before where they are as large."""
        shapes = {name: array.shape for name, array in values.items()}
        if self._kept is not None and shapes == self._shapes:
            self._kept.write(values)
        else:
            self._forget()
            self._kept, self._shapes = self._executor.keep(values), shapes
        self._begun = True

    def _forget(self) -> None:
        if self._kept is not None:
            self._kept.close()
        self._kept, self._shapes, self._begun = None, {}, False

    def first(self, sizes: Mapping[str, int]) -> dict[str, Array]:
        """See `beginning`."""
        return beginning(self._manifest, self._reader, sizes)

    def _says(self) -> str:
        if not self._reader.states:
            return "the model keeps none: declare states=[...] in model.py"
        return "its states are " + ", ".join(f"{name} {self._manifest.inputs[name]}" for name in self._reader.states)


def beginning(manifest: Manifest, reader: Reader, sizes: Mapping[str, int]) -> dict[str, Array]:
    """The states before the first call at these sizes of Dims, elements by their `bits`.

    Raises InputError where a size is open.
    """
    made = {}
    for name, state in manifest.states.items():
        tensor = manifest.inputs[name]
        shape = reader.signature.shape(name, sizes)
        if shape is None:
            raise InputError(
                f"the inputs do not say how large the state '{name}' is: {tensor}",
                fix="begin with states of your own: session.reset({...})",
            )
        values = np.frombuffer(state.initial, bits(tensor.dtype))
        made[name] = np.full(shape, values[0]) if values.size == 1 else values.reshape(shape)
    return made


def _array(name: str, value: Any) -> tuple[Array, str]:
    """A state's elements by their `bits`, and its dtype."""
    try:
        seen = kind_of(value).look(value)
    except InputError as error:
        raise InputError(f"the state '{name}': {error.what}", fix=error.fix) from error
    return seen.host(), seen.dtype
