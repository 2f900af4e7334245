"""CUDA graphs of calls: captured when a call comes for the second time, kept for the ones that come most lately.

A graph holds for one profile, the shapes and the addresses; another address makes another graph. Each has an execution
context of its own, for TensorRT leaves undefined what a graph does whose context was set to something else (TensorRT
developer guide, CUDA graphs). They share the lane's memory for activations, since they never run at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from aot.errors import EngineError
from aot.runtime.cuda import Handle
from aot.runtime.plan import Context, Plan

SEEN_ONCE = 256
"""How many calls that came once are remembered."""
PATIENCE = 256
"""Calls during which a graph was not launched before another may take its place: sizes that go round and round would
otherwise capture all the time."""


@dataclass(slots=True)
class _Captured:
    graph: Handle
    context: Context
    used: int


class Graphs:
    """The graphs of one lane, at most `most`."""

    def __init__(self, plan: Plan, most: int) -> None:
        self._plan, self._gpu, self._most = plan, plan.gpu, most
        self._captured: OrderedDict[Hashable, _Captured] = OrderedDict()
        self._seen: OrderedDict[Hashable, None] = OrderedDict()
        self._calls = 0

    def __len__(self) -> int:
        return len(self._captured)

    def find(self, key: Hashable) -> Handle | None:
        """The graph of a call that was captured."""
        self._calls += 1
        found = self._captured.get(key)
        if found is None:
            return None
        found.used = self._calls
        self._captured.move_to_end(key)
        return found.graph

    def wanted(self, key: Hashable) -> bool:
        """Whether a call that has no graph should be captured now: it was here before, and there is room."""
        if not self._most or not self._plan.captures:
            return False
        if key not in self._seen:
            self._seen[key] = None
            if len(self._seen) > SEEN_ONCE:
                self._seen.popitem(last=False)
            return False
        if len(self._captured) < self._most:
            return True
        oldest = next(iter(self._captured.values()))
        return self._calls - oldest.used >= PATIENCE

    def capture(self, key: Hashable, context: Context, enqueue: Callable[[Handle], None], stream: Handle) -> None:
        """Keep what `enqueue` puts on a stream; it is not run. Where it cannot be captured, nothing of the plan will be
        any more: each try costs a context."""
        self._gpu.begin_capture(stream)
        try:
            enqueue(stream)
        except EngineError:
            self._plan.captures = False
        graph = self._gpu.end_capture(stream)
        if graph is None or not self._plan.captures:
            self._plan.captures = False
            return
        self._seen.pop(key, None)
        if len(self._captured) >= self._most:
            self._gpu.destroy_graph(self._captured.popitem(last=False)[1].graph)
        self._captured[key] = _Captured(graph, context, self._calls)

    def close(self) -> None:
        """Destroy all of them."""
        for one in self._captured.values():
            self._gpu.destroy_graph(one.graph)
        self._captured.clear()
