"""How long every node takes on onnxruntime, by its own profiler, told of the nodes of the graph that it was given.

onnxruntime rewrites a graph before it runs it. What it made is written beside the profile; values keep their names
through that, so a node of it stands for what lay between the values that it gives and those that are still there.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from aot.backend import LayerTime
from aot.backends._emulate import unrounded
from aot.backends._graph import load_structure
from aot.backends._graph import nodes as nodes_of

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

_SUFFIX = "_kernel_time"


def layer_times(path: Path, feed: Mapping[str, Any], runs: int) -> list[LayerTime]:
    """The median time of every node over so many runs, in the order in which they run. Raises GraphError for a graph
    that onnxruntime does not take."""
    from aot.backends.onnxruntime import make_session

    with TemporaryDirectory(prefix="aot-") as name:
        folder = Path(name)
        optimized = folder / "optimized.onnx"

        def profiled(options: Any) -> None:
            options.enable_profiling = True
            options.profile_file_prefix = str(folder / "profile")
            options.optimized_model_filepath = str(optimized)
            key = "session.optimized_model_external_initializers"
            options.add_session_config_entry(f"{key}_file_name", "optimized.data")
            options.add_session_config_entry(f"{key}_min_size_in_bytes", "1024")

        session, _ = make_session(path, optimize=True, prepared=profiled)
        for _ in range(runs + 1):  # the first one is to warm up
            session.run(None, dict(feed))
        events = json.loads(Path(session.end_profiling()).read_text())
        made = made_of(load_structure(optimized).graph, load_structure(path).graph)
    return [LayerTime(name, ms, made.get(name, ())) for name, ms in _times(events, runs).items()]


def _times(events: Sequence[Mapping[str, Any]], runs: int) -> dict[str, float]:
    """Node -> milliseconds of a run, the median of the last `runs`; where it runs more than once in each, the sum."""
    found: dict[str, list[float]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith(_SUFFIX):
            found[event["name"].removesuffix(_SUFFIX)].append(event["dur"] / 1000)
    times = {}
    for name, all_of in found.items():
        each = max(len(all_of) // (runs + 1), 1)
        parts = [sum(all_of[start : start + each]) for start in range(0, len(all_of), each)]
        times[name] = median(parts[1:] or parts)
    return times


def made_of(optimized: GraphProto, given: GraphProto) -> dict[str, tuple[str, ...]]:
    """Node of the optimized graph -> the names of the given graph's nodes that it stands for.

    What was only put in (another layout, a rounding) stands for the node that it serves: the one that gives the value
    that it passes on, else the one that reads it.
    """
    makers = {value: node for node in nodes_of(given) for value in node.output if value}
    names = {node.name for node in makers.values()}
    kept = {unrounded(value) for node in optimized.node for value in node.output}
    found: dict[str, tuple[str, ...]] = {}
    readers: dict[str, list[str]] = defaultdict(list)
    for node in reversed(optimized.node):
        ends = [value for value in map(unrounded, (*node.output, node.name)) if value in makers]
        own = {node.name: None} if node.name in names else {}
        own |= dict.fromkeys(name for value in ends for name in _between(value, makers, kept))
        served = (found.get(reader, ()) for value in node.output for reader in readers[value])
        found[node.name] = tuple(own) or next(filter(None, served), ())
        for value in node.input:
            readers[value].append(node.name)
    return found


def _between(end: str, makers: Mapping[str, NodeProto], kept: set[str]) -> list[str]:
    """The nodes that compute a value from those that the optimized graph still computes, the last one first."""
    names: dict[str, None] = {}
    queue = [end]
    while queue:
        node = makers.get(queue.pop())
        if node is not None and node.name not in names:
            names[node.name] = None
            queue += [value for value in node.input if value not in kept]
    return list(names)
