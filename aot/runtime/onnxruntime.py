"""The final graph on onnxruntime's CPU provider: for machines without the GPU that an engine is for.

FP16 is computed in FP32 between casts, and whether a graph in BF16 is taken at all depends on which kernels there are;
`aot/backends/onnxruntime.py`, which judges graphs, emulates both.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from aot.errors import ArtifactError, EngineError
from aot.runtime.executor import Binding, Call, Executor, Kept, closed, unbound
from aot.runtime.files import REBUILD
from aot.runtime.interchange import BITS, Array, Given, bits
from aot.runtime.manifest import Manifest
from aot.runtime.pending import Pending, Working
from aot.runtime.sessions import NAME, elements, errors, options, said, session, value, version

WORKERS = 4


class _Kept(Kept):
    """last: the call that will leave the states, where it may not be over."""

    def __init__(self, values: Mapping[str, Array]) -> None:
        self.values: dict[str, Array] = {}
        self.last: Future[dict[str, Any]] | None = None
        self.write(values)

    def read(self) -> dict[str, Array]:
        """See Kept.read."""
        self.wait()
        return {name: value.copy() for name, value in self.values.items()}

    def write(self, values: Mapping[str, Array]) -> None:
        """See Kept.write."""
        self.wait()
        self.values = {name: value.copy() for name, value in values.items()}

    def wait(self) -> None:
        """Until the call before is over, however it ended."""
        if self.last is not None:
            self.last.exception()
            self.last = None


class OnnxRuntime(Executor):
    """A session of onnxruntime, whose `run` any number of threads may call."""

    def __init__(self, path: Path, manifest: Manifest, *, spin: bool = True) -> None:
        """Load an ONNX file; spin: see `aot.load`.

        Raises EngineError where onnxruntime does not take it, ArtifactError for a foreign one.
        """
        self.tells = f"{NAME} {version()}, cpu"
        try:
            self._session = session(str(path), options(spin=spin))
        except errors() as error:
            narrow = manifest.precision == "bf16"
            raise EngineError(
                f"{NAME} {version()} does not take the graph: {said(error)}",
                where=str(path),
                fix="its CPU provider lacks most kernels in bfloat16: `aot run` emulates them; or build in fp16"
                if narrow
                else "a newer onnxruntime may have the kernel",
            ) from error
        self._inputs, self._outputs = manifest.inputs, manifest.outputs
        self._names = list(manifest.outputs)
        self._read = {one.name for one in self._session.get_inputs()}
        strange = self._read - set(self._inputs) or {one.name for one in self._session.get_outputs()} ^ {*self._names}
        if strange:
            raise ArtifactError(
                f"the graph and the manifest differ on '{min(strange)}': they are not of one artifact",
                where=str(path),
                fix=REBUILD,
            )
        self._narrow = any(one.dtype in BITS for one in (*self._inputs.values(), *self._outputs.values()))
        self._fed = {state.output: name for name, state in manifest.states.items()}
        self._bytes = sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def run(self, call: Call) -> dict[str, Any]:
        """See Executor.run."""
        if call.kept is None:
            return self._finished(self._computed(self._feed(call)), call)
        assert isinstance(call.kept, _Kept)
        call.kept.wait()
        return self._stepped(call, call.kept)

    def submit(self, call: Call) -> Pending:
        """See Executor.submit. A call that takes states waits for the one before it, in its own thread."""
        with self._lock:
            self.ensure_open()
            if self._pool is None:
                self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="aot")
            kept = call.kept
            if kept is None:
                return Working(self._pool.submit(self.run, call))
            assert isinstance(kept, _Kept)
            kept.last = self._pool.submit(self._after, kept.last, call, kept)
            return Working(kept.last)

    def _after(self, before: Future[dict[str, Any]] | None, call: Call, kept: _Kept) -> dict[str, Any]:
        if before is not None:
            before.exception()  # waits; the pool begins calls in order, so that one is running or over
        return self._stepped(call, kept)

    def _stepped(self, call: Call, kept: _Kept) -> dict[str, Any]:
        states = {name: array for name, array in kept.values.items() if name in self._read}
        found = self._computed({**self._feed(call), **states})
        for output, name in self._fed.items():
            kept.values[name] = found.pop(output)
        return self._finished(found, call)

    def _feed(self, call: Call) -> dict[str, Any]:
        return {name: given.host() for name, given in call.given.items() if name in self._read}

    def _computed(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        running = self._session
        if running is None:
            raise closed()
        try:
            if not self._narrow:
                return dict(zip(self._names, running.run(self._names, feed), strict=True))
            given = {name: value(array, self._inputs[name].dtype) for name, array in feed.items()}
            made = dict(zip(self._names, running.run_with_ort_values(self._names, given), strict=True))
            return {name: elements(one, bits(self._outputs[name].dtype)) for name, one in made.items()}
        except errors() as error:
            raise EngineError(f"{NAME} does not run the graph: {said(error)}") from error

    def _finished(self, found: Mapping[str, Any], call: Call) -> dict[str, Any]:
        made = call.like.kind.made
        return {name: made(array, self._outputs[name].dtype, call.like) for name, array in found.items()}

    def bind(self, call: Call) -> Binding:
        """See Executor.bind."""
        self.ensure_open()
        return _Binding(self, {name: array.copy() for name, array in self._feed(call).items()}, call.like)

    def keep(self, values: Mapping[str, Array]) -> Kept:
        """See Executor.keep."""
        self.ensure_open()
        return _Kept(values)

    def memory(self) -> dict[str, int]:
        """See Executor.memory; the graph's file stands for what onnxruntime made of it."""
        return {"device_bytes": 0, "host_bytes": self._bytes}

    def close(self) -> None:
        """See Executor.close. What was submitted is computed first."""
        with self._lock:
            self.over = True
        if self._pool is not None:
            self._pool.shutdown()
        self._session = None


class _Binding(Binding):
    """Runs are over when `run` returns. feed: its own copies."""

    def __init__(self, executor: OnnxRuntime, feed: Mapping[str, Any], like: Given) -> None:
        self._executor, self._feed, self._call = executor, dict(feed), Call(0, (), {}, like)
        self._found: dict[str, Any] = {}
        self._open = True

    def run(self) -> None:
        """See Binding.run."""
        self.synchronize()
        self._found = self._executor._computed(self._feed)

    def synchronize(self) -> None:
        """See Binding.synchronize."""
        if not self._open:
            raise unbound()
        self._executor.ensure_open()

    def outputs(self) -> dict[str, Any]:
        """See Binding.outputs; before the first run, what that gives, as on a GPU, where binding runs it once."""
        self.synchronize()
        if not self._found:
            self.run()
        copies = {name: array.copy() for name, array in self._found.items()}
        return self._executor._finished(copies, self._call)

    def close(self) -> None:
        """See Binding.close."""
        self._open = False
        self._feed, self._found = {}, {}
