"""onnxruntime on the CPU: the reference that quantized graphs are judged with, and an honest fallback to run on.

How its sessions execute a graph is said in `aot/runtime/sessions.py`.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from aot.backend import Backend, Job, LayerTime, Session, Unsupported
from aot.backends import _emulate, _graph
from aot.config import Precision
from aot.declaration import ModelSpec
from aot.errors import EngineError, GraphError, TargetError
from aot.profile import Profile
from aot.progress import Progress
from aot.runtime import sessions
from aot.runtime.sessions import errors, said
from aot.toolchain import Machine

if TYPE_CHECKING:
    import onnx

    from aot.arrays import Arrays
    from aot.timing_cache import TimingCaches

TARGET = "cpu"
# protobuf cannot hold a message beyond 2 GiB; the structure beside the weights needs a little.
LIMIT = 2**31 - 2**24
_UNKNOWN = re.compile(r"([\w.]+):(\w+)\(-?\d+\) is not a registered function/op")


class OnnxRuntime(Backend):
    """See the module's docstring."""

    name = "onnxruntime"
    title = "onnxruntime"
    suffix = ".onnx"

    def version(self) -> str | None:
        """See Backend.version."""
        return sessions.version()

    def targets(self, machine: Machine) -> tuple[str, ...]:
        """The CPU."""
        return (TARGET,) if self.version() else ()

    def suits(self, precision: Precision, target: str) -> None:
        """See Backend.suits."""
        if target != TARGET:
            raise TargetError(
                f"onnxruntime builds for {TARGET}, not for {target}",
                where=f"--backend onnxruntime --target {target}",
                fix=f"--backend tensorrt_rtx for {target}, or --target {TARGET}",
            )

    def check(self, precision: Precision, target: str, machine: Machine) -> None:
        """See Backend.check."""
        self.suits(precision, target)
        if self.version() is None:
            raise TargetError("onnxruntime is not installed", where=f"--target {TARGET}", fix="pip install onnxruntime")

    def judge(self) -> str:
        """See Backend.judge."""
        return "session"

    def unsupported(self, graph: Path) -> list[Unsupported]:
        """What a session says when it is made; the first thing, for it stops there."""
        size = sum(path.stat().st_size for path in graph.parent.glob(f"{graph.name}*"))
        if size > LIMIT:
            reason = f"it is {size / 2**30:.1f} GiB, and a single ONNX file holds 2"
            return [Unsupported("", "", None, reason, "--precision fp16 or int8 halves it; TensorRT has no such limit")]
        try:
            make_session(graph, optimize=False)
        except GraphError as error:
            structure = _graph.load_structure(graph).graph
            named = _graph.mentioned(structure, error.what) or _graph.mentioned(structure, error.where or "")
            reason, fix = error.what.partition(": ")[2], error.fix or ""
            if not named:
                return [Unsupported("", "", None, reason, fix)]
            node = named[0]
            return [Unsupported(node.name or node.output[0], node.op_type, _graph.origin(node), reason, fix)]
        return []

    def build(self, job: Job, plan: Path, caches: TimingCaches | None, progress: Progress) -> Mapping[str, Any]:
        """The engine is the final graph in one file, weights inside, so that it loads by itself."""
        import onnx

        onnx.save(onnx.load(str(job.graph)), str(plan))
        return {"origin": None, "timing_cache": "does not apply"}

    def can_run(self, target: str, machine: Machine, hardware: str | None = None) -> str | None:
        """See Backend.can_run."""
        if target != TARGET:
            return f"onnxruntime runs on {TARGET}, not on {target}"
        return None if self.version() else "onnxruntime is not installed"

    def open(self, plan: Path, spec: ModelSpec, profiles: Sequence[Profile], weights: Path | None = None) -> Session:
        """See Backend.open; any ONNX file will do. FP16 and BF16 are emulated: see `_emulate`."""
        return CpuSession(plan, *make_session(plan, optimize=True))


class CpuSession(Session):
    """An onnxruntime session, and the outputs to round back to their own dtype."""

    def __init__(self, path: Path, session: Any, narrow: Mapping[str, str]) -> None:
        self._path = path
        self._session = session
        self._narrow = narrow
        self._outputs = [out.name for out in session.get_outputs()]
        self._inputs = {put.name: put.type for put in session.get_inputs()}

    def __exit__(self, *_: object) -> None:
        self._session = None

    def __call__(self, inputs: Mapping[str, Any]) -> Arrays:
        """Run once. Raises EngineError for a missing input, a wrong dtype or shape."""
        import ml_dtypes
        import numpy as np

        found = dict(zip(self._outputs, self._run(self._feed(inputs)), strict=True))
        for name, dtype in self._narrow.items():
            found[name] = found[name].astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16)
        return found

    def stopwatch(self, inputs: Mapping[str, Any]) -> Callable[[int], float]:
        """See Session.stopwatch."""
        feed = self._feed(inputs)
        self._run(feed)

        def run(times: int) -> float:
            started = time.perf_counter()
            for _ in range(times):
                self._run(feed)
            return time.perf_counter() - started

        return run

    def layer_times(self, inputs: Mapping[str, Any], runs: int) -> list[LayerTime]:
        """See Session.layer_times."""
        from aot.backends.onnxruntime_profile import layer_times

        return layer_times(self._path, self._feed(inputs), runs)

    def _feed(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        import numpy as np

        missing = [name for name in self._inputs if name not in inputs]
        if missing:
            raise EngineError(f"input '{missing[0]}' is missing", fix=f"the graph takes: {', '.join(self._inputs)}")
        feed = {name: np.asarray(inputs[name]) for name in self._inputs}
        for name, array in feed.items():
            if array.dtype.name in ("float16", "bfloat16") and self._inputs[name] == "tensor(float)":
                feed[name] = array.astype(np.float32)
        return feed

    def _run(self, feed: Mapping[str, Any]) -> list[Any]:
        try:
            return list(self._session.run(self._outputs, feed))
        except errors() as error:
            raise EngineError(f"onnxruntime does not run the graph: {said(error)}") from error


def make_session(
    path: Path, *, optimize: bool, prepared: Callable[[Any], None] | None = None
) -> tuple[Any, dict[str, str]]:
    """A session on the CPU and its narrow outputs. Raises GraphError, naming the node, for what it does not take.

    optimize: False loads faster, for a session that is only a check. prepared: sets more of its options.
    """
    options = sessions.options(optimize=optimize)
    if prepared is not None:
        prepared(options)
    try:
        if not _emulate.is_narrow(path):
            return sessions.session(str(path), options), {}
        model, narrow = _emulate.emulated(path)
        return _from_memory(model, options), narrow
    except errors() as error:
        refused(path, error)


def _from_memory(model: onnx.ModelProto, options: Any) -> Any:
    """A session from a model in memory; one too large for a message goes through a file beside its weights."""
    from tempfile import TemporaryDirectory

    import onnx

    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) < LIMIT:
        return sessions.session(model.SerializeToString(), options)
    with TemporaryDirectory(prefix="aot-") as folder:
        path = os.path.join(folder, "model.onnx")
        onnx.save(model, path, save_as_external_data=True, location="model.onnx.data")
        return sessions.session(path, options)


def evaluator(model: onnx.ModelProto) -> Callable[[Mapping[str, Any]], list[Any]]:
    """A small model as a function from inputs by name to its outputs in order, each op as it is written.

    Both raise EngineError for what onnxruntime does not take.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = sessions.threads()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = _from_memory(model, options)
    except errors() as error:
        raise EngineError(said(error)) from error

    def run(inputs: Mapping[str, Any]) -> list[Any]:
        try:
            return list(session.run(None, dict(inputs)))
        except errors() as error:
            raise EngineError(said(error)) from error

    return run


def refused(path: Path, error: Exception) -> NoReturn:
    """Raise GraphError for what onnxruntime said of a graph, at the node it names."""
    graph = _graph.load_structure(path).graph
    unknown = _UNKNOWN.search(str(error))
    if unknown is not None:
        domain, op = unknown.groups()
        raise GraphError(
            f"onnxruntime {BACKEND.version()} does not take the graph: nothing implements {domain}::{op}",
            where=next(
                (_graph.describe(n) for n in _graph.nodes(graph) if (n.domain, n.op_type) == (domain, op)), None
            ),
            fix=f"give the model a local function of that name, or give the op as a plugin: plugins/{op}.py",
        ) from error
    where = _graph.blamed(graph, str(error)) if path.is_file() else None
    raise GraphError(
        f"onnxruntime {BACKEND.version()} does not take the graph: {said(error)}",
        where=where or str(path),
        fix="write that line with other ops; a newer onnxruntime may have the kernel",
    ) from error


BACKEND = OnnxRuntime()
