"""An engine of TensorRT or TensorRT-RTX on a GPU."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from typing import Any

from aot.errors import AotError
from aot.runtime.cuda import Gpu
from aot.runtime.executor import Binding, Call, Executor, Kept, unbound
from aot.runtime.interchange import HOST, Array
from aot.runtime.kept import KeptOnGpu
from aot.runtime.lanes import Lane
from aot.runtime.manifest import Engine, Manifest
from aot.runtime.pending import Pending
from aot.runtime.plan import Plan
from aot.runtime.pool import Pool
from aot.runtime.started import Started

GRAPHS = 16
"""CUDA graphs a lane keeps; each has an execution context."""


class TensorRt(Executor):
    """A plan and the lanes that run it."""

    def __init__(self, gpu: Gpu, manifest: Manifest, engine: Engine, contexts: int) -> None:
        self.over = True  # until all of it is there
        self.tells = f"{engine.backend} {engine.version}"
        self._gpu = gpu
        self._fed = {state.output: name for name, state in manifest.states.items()}
        with gpu:
            self._plan = Plan(gpu, manifest, engine)
        self._pool = Pool(self._lane, contexts)
        self._bound: set[Bound] = set()
        self._states: set[KeptOnGpu] = set()
        self.over = False

    def _lane(self, stream: int | None) -> Lane:
        return Lane(self._plan, GRAPHS, stream)

    def run(self, call: Call) -> dict[str, Any]:
        """See Executor.run."""
        self.ensure_open()
        entered = self._gpu.enter()  # faster than a `with`
        try:
            lane = self._pool.take(self._stream(call))
            try:
                return Started(lane, call).outputs(self._plan.outputs)
            finally:
                self._pool.give(lane)
        finally:
            if entered:
                self._gpu.leave()

    def _stream(self, call: Call) -> int | None:
        """The caller's stream, where its arrays are on the GPU."""
        like = call.like
        return None if like.device == HOST else like.kind.stream(self._gpu.device)

    def submit(self, call: Call) -> Pending:
        """See Executor.submit."""
        self.ensure_open()
        with self._gpu:
            lane = self._pool.take(self._stream(call))
            try:
                started = Started(lane, call)
                if not started.waits:
                    outputs = started.outputs(self._plan.outputs)
            except BaseException:  # whatever ends it, Ctrl-C too: the lane is free again
                self._pool.give(lane)
                raise
            if not started.waits:
                self._pool.give(lane)
                return Ready(self._gpu, lane, outputs)
            return Later(self, lane, started)

    def bind(self, call: Call) -> Binding:
        """See Executor.bind."""
        self.ensure_open()
        bound = Bound(self, call)
        self._bound.add(bound)
        return bound

    def keep(self, values: Mapping[str, Array]) -> Kept:
        """See Executor.keep."""
        self.ensure_open()
        kept = KeptOnGpu(self._gpu, values, self._fed, self._states.discard)
        self._states.add(kept)
        return kept

    def memory(self) -> dict[str, int]:
        """See Executor.memory; the plan's size stands for its weights."""
        return {"device_bytes": self._gpu.allocated + self._plan.size, "host_bytes": self._gpu.pinned}

    def close(self) -> None:
        """See Executor.close. TensorRT's objects go before the GPU's context."""
        if self.over:
            return
        self.over = True
        self._pool.close()
        with self._gpu:
            ending: list[Bound | KeptOnGpu] = [*self._bound, *self._states]
            for one in ending:
                one.close()
            for lane in self._pool.lanes:
                lane.close()
            self._plan.close()
        self._gpu.close()

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.close()


class Ready(Pending):
    """A call whose outputs are on the GPU, ready in the order of the caller's stream."""

    def __init__(self, gpu: Gpu, lane: Lane, outputs: dict[str, Any]) -> None:
        self._gpu, self._lane, self._outputs = gpu, lane, outputs

    def done(self) -> bool:
        """See Pending.done."""
        return True

    def result(self) -> dict[str, Any]:
        """See Pending.result."""
        return self._outputs


class Later(Pending):
    """A call that has its lane until its outputs were taken."""

    def __init__(self, executor: TensorRt, lane: Lane, started: Started) -> None:
        self._executor, self._lane, self._started = executor, lane, started
        self._lock = threading.Lock()
        self._over = False
        self._outputs: dict[str, Any] = {}
        self._error: BaseException | None = None
        executor._pool.later(self)

    def done(self) -> bool:
        """See Pending.done."""
        if self._over:
            return True
        with self._executor._gpu:
            return self._lane.done()

    def result(self) -> dict[str, Any]:
        """See Pending.result."""
        self._executor._pool.finished(self)
        self.finish()
        if self._error is not None:
            raise self._error
        return self._outputs

    def finish(self) -> None:
        """Take the outputs, once; what goes wrong is for `result` to raise."""
        with self._lock:
            if self._over:
                return
            with self._executor._gpu:
                try:
                    self._outputs = self._started.outputs(self._executor._plan.outputs)
                except BaseException as error:  # kept whatever it is: a second `result` must not pass for an answer
                    self._error = error
                    if not isinstance(error, AotError):
                        raise
                finally:
                    self._over = True
                    self._executor._pool.give(self._lane)


def _over() -> None:
    raise unbound()


class Bound(Binding):
    """A call on a lane of its own, which is captured where it can be."""

    def __init__(self, executor: TensorRt, call: Call) -> None:
        self._executor, self._call, self._gpu = executor, call, executor._gpu
        with self._gpu:
            self._lane = Lane(executor._plan, 1, executor._stream(call))
            self._run = self._lane.hold(call)
            self._lane.wait()

    def run(self) -> None:
        """See Binding.run."""
        entered = self._gpu.enter()
        try:
            self._run()
        finally:
            if entered:
                self._gpu.leave()

    def _ensure_open(self) -> None:
        if self._run is _over:
            raise unbound()

    def synchronize(self) -> None:
        """See Binding.synchronize."""
        self._ensure_open()
        with self._gpu:
            self._lane.wait()

    def outputs(self) -> dict[str, Any]:
        """See Binding.outputs."""
        self._ensure_open()
        with self._gpu:
            self._lane.wait()
            slots = self._executor._plan.outputs
            like = self._call.like
            return {
                slot.name: self._lane.fetched(slot, shape, like)
                for slot, shape in zip(slots, self._lane.held, strict=True)
            }

    def close(self) -> None:
        """See Binding.close."""
        if self in self._executor._bound:
            self._executor._bound.discard(self)
            with self._gpu:
                self._lane.close()
                self._run = _over
