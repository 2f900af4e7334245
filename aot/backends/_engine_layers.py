"""The layers of an engine of TensorRT or TensorRT-RTX: which nodes each is made of, and how long each takes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from statistics import median
from types import ModuleType
from typing import Any

from aot.backend import LayerTime

# `[ONNX Layer: name]`, and `[ONNX Layer: name | call (function)]` inside a function; one behind the other, or with a
# control character between them. Of 10.x some say `[name]` from the second on.
_NAMED = re.compile(r"\[(?:ONNX Layer: )?([^\[\]|\x1e\x1f]+?)(?: \|[^\[\]]*)?\]")
# A layer of any profile but the first has a name of its own.
_PROFILE = re.compile(r" \[profile \d+\]$")


def layer_times(trt: ModuleType, engine: Any, context: Any, run: Callable[[int], float], runs: int) -> list[LayerTime]:
    """The median time of every layer over so many runs, in the order in which they run.

    run: see Session.stopwatch. The context tells its profiler after each run, and keeps it: later runs are slower.
    """
    profiler = _profiler(trt)
    context.profiler = profiler
    context.enqueue_emits_profile = True
    for _ in range(runs):
        profiler.runs.append({})
        run(1)
    nodes = nodes_by_layer(trt, engine)
    names = list(dict.fromkeys(name for one in profiler.runs for name in one))
    return [
        LayerTime(name, median(one.get(name, 0.0) for one in profiler.runs), nodes.get(_PROFILE.sub("", name), ()))
        for name in names
    ]


def _profiler(trt: ModuleType) -> Any:
    """Keeps the milliseconds of every layer, run by run; the type exists only once the module is imported."""

    class Profiler(trt.IProfiler):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)
            self.runs: list[dict[str, float]] = []

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            # Called from C++, through which no exception may travel.
            self.runs[-1][layer_name] = self.runs[-1].get(layer_name, 0.0) + ms

    return Profiler()


def nodes_by_layer(trt: ModuleType, engine: Any) -> dict[str, tuple[str, ...]]:
    """Layer -> the names of the ONNX nodes that it says it is made of.

    Empty for an engine whose builder was not asked for details: that of another tool.
    """
    return {
        _PROFILE.sub("", layer["Name"]): tuple(dict.fromkeys(_NAMED.findall(layer.get("Metadata") or "")))
        for layer in _layers(trt, engine)
    }


def tactics(trt: ModuleType, engine: Any) -> list[dict[str, str]]:
    """[{layer, tactic}] in the order in which they run; the tactic by its name, else by its number, else empty."""
    return [
        {"layer": str(layer["Name"]), "tactic": str(layer.get("TacticName") or layer.get("TacticValue") or "")}
        for layer in _layers(trt, engine)
    ]


def _layers(trt: ModuleType, engine: Any) -> list[dict[str, Any]]:
    told = engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON)
    layers = json.loads(told, strict=False).get("Layers", [])  # it holds control characters as they are
    return [layer for layer in layers if isinstance(layer, dict)]
