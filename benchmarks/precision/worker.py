"""A process that builds, inspects and times engines on one GPU; one that hangs or crashes costs one row."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from _engine import Dims

RUNS = 200
# Of them, at the start: clocks and caches settle.
WARM = 20
SLOWEST = 10


class Worker:
    """Runs one command after the other on one GPU, each with a time limit; started again after one that ended it."""

    def __init__(self, gpu: int, daemon: bool = True) -> None:
        """daemon: it has no processes of its own."""
        self._gpu = gpu
        self._daemon = daemon
        self._context = multiprocessing.get_context("spawn")
        self._process: Any = None
        self._pipe: Any = None

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...], timeout: float) -> Any:
        """What a function that can be imported gives. Raises RuntimeError with the reason why it gives nothing: its
        own, the signal that ended the process, or that its time is over."""
        if self._process is None:
            self._pipe, theirs = self._context.Pipe()
            self._process = self._context.Process(target=_serve, args=(theirs, self._gpu), daemon=self._daemon)
            self._process.start()
            theirs.close()
        self._pipe.send((function, arguments))
        if not self._pipe.poll(timeout):
            self.close()
            raise RuntimeError(f"not done after {timeout:g} s")
        try:
            failed, answer = self._pipe.recv()
        except EOFError:
            self._process.join()
            code = self._process.exitcode
            self._process = None
            ended = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            raise RuntimeError(f"the process ended: {ended}") from None
        if failed:
            raise RuntimeError(answer)
        return answer

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


def _serve(pipe: Any, gpu: int) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        try:
            answer = (False, function(*arguments))
        except (RuntimeError, ImportError, OSError, ValueError) as error:
            answer = (True, " ".join(str(error).split())[-400:] or type(error).__name__)
        pipe.send(answer)


def make(graph: Path, dims: Dims, plan: Path, level: int) -> dict[str, Any]:
    """Build the engine into `plan`, kernels that it launches beside it: {seconds, bytes}."""
    from _engine import KERNELS, build

    if not graph.exists():
        raise RuntimeError("not prepared: the recipe refuses the model")
    built, seconds = build(graph, dims, level)
    plan.write_bytes(built)
    if graph.with_suffix(KERNELS).exists():
        shutil.copy(graph.with_suffix(KERNELS), plan.with_suffix(KERNELS))
    return {"seconds": round(seconds, 2), "bytes": len(built)}


def inspect(graph: Path, dims: Dims, plan: Path, profile: bool) -> dict[str, Any]:
    """`layers.summary` of the engine at its sizes, and what the inspector says in full beside the plan, as `.json`;
    with `profile` its slowest layers as well: [{name, ms}]."""
    import tensorrt as trt
    from _engine import Running, learn, load

    from precision.layers import Graph, read, summary

    learn(plan)
    engine = load(plan.read_bytes())
    running = Running(engine, dims)
    inspector = engine.create_engine_inspector()
    inspector.execution_context = running.context  # without it, tensors of dynamic size have no format
    said = inspector.get_engine_information(trt.LayerInformationFormat.JSON)
    plan.with_suffix(".json").write_text(said)
    found: dict[str, Any] = summary(read(said), Graph.read(graph))
    return found | ({"slowest": _slowest(running)} if profile else {})


def _slowest(running: Any, runs: int = 20) -> list[dict[str, Any]]:
    """Mean milliseconds of the slowest layers, with TensorRT's profiler attached, which itself takes time."""
    import tensorrt as trt

    class Profiler(trt.IProfiler):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)
            self.total: dict[str, float] = {}

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self.total[layer_name] = self.total.get(layer_name, 0.0) + ms

    for _ in range(3):
        running.enqueue()
    running.wait()
    profiler = Profiler()
    running.context.profiler = profiler
    for _ in range(runs):
        running.enqueue()
        running.wait()
    ranked = sorted(profiler.total.items(), key=lambda layer: -layer[1])
    return [{"name": name, "ms": round(total / runs, 4)} for name, total in ranked[:SLOWEST]]


def times(plans: Mapping[str, Path], dims: Dims) -> dict[str, Any]:
    """Of each engine, taken in turns: {ms, ms_p10, ms_p90}; {reason} for one that does not run."""
    from _engine import Replay, learn, load

    answer: dict[str, Any] = {}
    replays: dict[str, Replay] = {}
    for name, plan in plans.items():
        try:
            learn(plan)
            replays[name] = Replay(load(plan.read_bytes()), dims)
        except RuntimeError as error:
            answer[name] = {"reason": str(error)[-400:]}
    taken: dict[str, list[float]] = {name: [] for name in replays}
    for _ in range(RUNS):
        for name, replay in replays.items():
            taken[name].append(replay.run())
    return answer | {name: spread(runs[WARM:]) for name, runs in taken.items()}


def spread(milliseconds: list[float]) -> dict[str, float]:
    """The median and the two outer deciles."""
    tenths = statistics.quantiles(milliseconds, n=10)
    middle = statistics.median(milliseconds)
    return {"ms": round(middle, 4), "ms_p10": round(tenths[0], 4), "ms_p90": round(tenths[-1], 4)}
