"""Names that tell all nodes and values apart, and nodes in an order in which they can be computed.

onnx_ir brings both about; here it is asked first whether there is anything to do, which takes a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import onnx_ir as ir
from onnx_ir.passes import common

from aot.graph.state import inner_graphs, walk


def name_apart(model: ir.Model) -> None:
    """Give every node and every value a name that no other in its scope has."""
    nodes = list(walk(model.graph, everywhere=True))
    _name(nodes)
    if model.functions or not _are_apart(model.graph, nodes):
        common.NameFixPass()(model)


def sort(model: ir.Model) -> None:
    """Put every node behind those that it reads from. Raises ValueError for a cycle."""
    if model.functions or not _is_sorted(model.graph):
        common.TopologicalSortPass()(model)


def _name(nodes: Sequence[ir.Node]) -> None:
    """Name the nodes that have no name, `node_N`."""
    nameless = [node for node in nodes if not node.name]
    taken = {node.name for node in nodes} if nameless else set()
    fresh = (name for number in count() if (name := f"node_{number}") not in taken)
    for node in nameless:
        node.name = next(fresh)


def _are_apart(graph: ir.Graph, nodes: Sequence[ir.Node]) -> bool:
    """Whether all have names, and no two the same, in whatever scope."""
    held = [body for node in nodes if node.attributes for body in inner_graphs(node.attributes.data.values())]
    values: dict[ir.Value, str | None] = {}
    for one in (graph, *held):
        values.update([(value, value.name) for value in (*one.inputs, *one.outputs, *one.initializers.data.values())])
    for node in nodes:
        values.update([(value, value.name) for value in node.outputs])
    of_values, of_nodes = set(values.values()), {node.name for node in nodes}
    apart = len(of_values) == len(values) and len(of_nodes) == len(nodes)
    return apart and (of_values | of_nodes).isdisjoint(("", None))


def _is_sorted(graph: ir.Graph) -> bool:
    before: set[ir.Node | None] = {None}
    for node in walk(graph, everywhere=True):
        if not all([value is None or value.producer() in before for value in node.inputs]):
            return False
        before.add(node)
    return True
