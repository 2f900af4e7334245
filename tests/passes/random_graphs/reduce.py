"""Making a graph on which something fails small: fewer outputs, fewer nodes, inputs in place of what computes them.

    python -m tests.passes.random_graphs.reduce SEED

prints what the passes do wrong to the graph of that seed, and the least graph found on which they do it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import onnx
from onnx import helper

from aot.graph import Pass
from aot.passes import PASSES
from tests.passes.random_graphs import DIMS, Graph, generate
from tests.passes.random_graphs.draft import Array
from tests.passes.random_graphs.judge import fault, run


def reduced(graph: Graph, passes: Sequence[Pass] | None = None) -> Graph:
    """The least graph found with a fault of the same kind."""
    kind = _kind(graph, passes)
    dead = not _fails(_Cut(graph).apply(), kind, passes)
    smaller = True
    while smaller:
        smaller = False
        for move in _moves(graph):
            try:
                candidate = move(_Cut(graph, dead=dead))
            except Exception:  # noqa: BLE001  such as a value that is no tensor, and can be no input
                continue
            if candidate is not None and _fails(candidate, kind, passes):
                graph, smaller = candidate, True
    return graph


def culprit(graph: Graph) -> str:
    """The first pass of the list after which the fault is there."""
    kind = _kind(graph, None)
    return next(
        (PASSES[n - 1].name for n in range(1, len(PASSES)) if _kind(graph, PASSES[:n]) == kind), PASSES[-1].name
    )


def _kind(graph: Graph, passes: Sequence[Pass] | None) -> str | None:
    found = fault(graph.model, graph.feeds, passes)
    return found if found is None or found.startswith("unsettled") else found.split(":")[0]


def _fails(graph: Graph, kind: str | None, passes: Sequence[Pass] | None) -> bool:
    try:
        run(graph.model, graph.feeds)
    except Exception:  # noqa: BLE001  a cut may leave a graph that is none
        return False
    return _kind(graph, passes) == kind


Move = Callable[["_Cut"], "Graph | None"]


def _moves(graph: Graph) -> list[Move]:
    """What may make the graph smaller, the largest steps first. A move that no longer fits gives None."""
    made = [name for node in graph.model.graph.node for name in node.output if name]
    moves: list[Move] = [partial(_Cut.only, name=name) for name in made]
    moves += [partial(_Cut.without, name=value.name) for value in graph.model.graph.output]
    moves += [partial(_Cut.dropped, name=name) for name in reversed(made)]
    moves += [partial(_Cut.fed, name=name) for name in reversed(made)]
    moves += [partial(_Cut.bypassed, name=name) for name in made]
    return moves


class _Cut:
    """A part of a graph. dead: nodes that no output needs are kept."""

    def __init__(self, graph: Graph, *, dead: bool = False) -> None:
        self.graph, self.dead = graph, dead
        self.model = onnx.ModelProto()
        self.model.CopyFrom(graph.model)
        self.feeds = tuple(dict(feed) for feed in graph.feeds)
        self.outputs = [value.name for value in graph.model.graph.output]
        self.makers = {name: node for node in self.model.graph.node for name in node.output}

    def only(self, name: str) -> Graph | None:
        """With one output."""
        if name not in self.makers or self.outputs == [name]:
            return None
        self.outputs = [name]
        return self.apply()

    def without(self, name: str) -> Graph | None:
        """Without one of several outputs."""
        if name not in self.outputs or len(self.outputs) == 1:
            return None
        self.outputs.remove(name)
        return self.apply()

    def dropped(self, name: str) -> Graph | None:
        """Without a node that nothing reads."""
        read = {name for node in self.model.graph.node for name in _read(node)} | set(self.outputs)
        if not self.dead or name not in self.makers or read & set(self.makers[name].output):
            return None
        self.model.graph.node.remove(self.makers[name])
        return self.apply()

    def fed(self, name: str) -> Graph | None:
        """With an input in place of a node of one output."""
        node = self.makers.get(name)
        if node is None or len(node.output) > 1 or name in self.outputs or node.op_type == "Constant":
            return None
        values = self._values([name])[name]
        self.model.graph.node.remove(node)
        self.model.graph.input.append(_typed(name, values))
        for feed, value in zip(self.feeds, values, strict=True):
            feed[name] = value
        return self.apply()

    def bypassed(self, name: str) -> Graph | None:
        """With a node's input of the same dtype and shape read in place of its output."""
        node = self.makers.get(name)
        if node is None or len(node.output) > 1:
            return None
        values = self._values([name, *(put for put in node.input if put)])
        put = next((put for put in node.input if put and _alike(values[put], values[name])), None)
        if put is None:
            return None
        for reader in self.model.graph.node:
            if reader is not node:
                _rename(reader, {name: put})
        self.outputs = [put if output == name else output for output in self.outputs]
        self.model.graph.node.remove(node)
        return self.apply()

    def apply(self) -> Graph:
        """The part as a graph."""
        needed, kept = set(self.outputs), []
        for node in reversed(self.model.graph.node):
            if self.dead or needed & set(node.output):
                kept.append(node)
                needed |= set(_read(node))
        inputs = [value for value in self.model.graph.input if value.name in needed]
        weights = [tensor for tensor in self.model.graph.initializer if tensor.name in needed]
        known = {value.name: value for value in self.graph.model.graph.output}
        new = [name for name in self.outputs if name not in known]
        known |= {name: _typed(name, values) for name, values in self._values(new).items()}
        graph = helper.make_graph(kept[::-1], "reduced", inputs, [known[name] for name in self.outputs], weights)
        names = {value.name for value in inputs}
        return Graph(
            helper.make_model(graph, opset_imports=self.model.opset_import, ir_version=self.model.ir_version),
            tuple({name: array for name, array in feed.items() if name in names} for feed in self.feeds),
        )

    def _values(self, names: Sequence[str]) -> dict[str, list[Array]]:
        """Those values in every run."""
        if not names:
            return {}
        model = onnx.ModelProto()
        model.CopyFrom(self.graph.model)
        inputs = {value.name for value in model.graph.input}
        del model.graph.output[:]
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in inputs)
        made = [value.name for value in model.graph.output]
        runs = run(model, self.graph.feeds) if made else [[]] * len(self.graph.feeds)
        held = [feed | dict(zip(made, one, strict=True)) for feed, one in zip(self.graph.feeds, runs, strict=True)]
        return {name: [np.asarray(one[name]) for one in held] for name in names}


def _alike(a: Sequence[Array], b: Sequence[Array]) -> bool:
    return all(x.shape == y.shape and x.dtype == y.dtype for x, y in zip(a, b, strict=True))


def _read(node: onnx.NodeProto) -> Iterator[str]:
    yield from node.input
    for attribute in node.attribute:
        for inner in attribute.g.node:
            yield from _read(inner)
        yield from (value.name for value in attribute.g.output)


def _rename(node: onnx.NodeProto, names: dict[str, str]) -> None:
    node.input[:] = [names.get(name, name) for name in node.input]
    for attribute in node.attribute:
        for inner in attribute.g.node:
            _rename(inner, names)


def _typed(name: str, runs: list[Array]) -> onnx.ValueInfoProto:
    dims: list[int | str | None] = []
    known = {size: dim for dim, size in DIMS.items()}
    for sizes in zip(*(array.shape for array in runs), strict=True):
        dims.append(sizes[0] if len(set(sizes)) == 1 else known.get(sizes))
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(runs[0].dtype), dims)


def main() -> int:
    """See the module."""
    graph = generate(int(sys.argv[1]))
    print(fault(graph.model, graph.feeds))
    small = reduced(graph)
    print(culprit(small), fault(small.model, small.feeds), onnx.printer.to_text(small.model), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
