"""How many nodes a file holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import onnx


def ops_of(file: Path) -> Counter[str]:
    """Nodes by op type: all but Constant, which only holds a number; subgraphs included, a function at every call."""
    model = onnx.load(file, load_external_data=False)
    functions = {(function.domain, function.name): function for function in model.functions}
    counted: Counter[str] = Counter()

    def count(nodes: Iterable[onnx.NodeProto]) -> None:
        for node in nodes:
            called = functions.get((node.domain, node.op_type))
            if called is not None:
                count(called.node)
            elif node.op_type != "Constant":
                counted[node.op_type] += 1
            for attribute in node.attribute:
                for graph in (attribute.g, *attribute.graphs):
                    count(graph.node)

    count(model.graph.node)
    return counted


def nodes_of(file: Path) -> int:
    """The sum of `ops_of`."""
    return ops_of(file).total()
