"""What a vendor's parser refuses: every node, though it stops at the first.

The parser reads a graph in milliseconds and ends at the first node that it does not take. So the node is cut out, what
it computes becomes an input of the graph, and the parser is asked again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aot import origins

if TYPE_CHECKING:
    import onnx_ir as ir

# A graph with more refused nodes than this is not one to go through node by node.
ROUNDS = 100
_REDUCTION = "Unsupported reduction type"


@dataclass(frozen=True)
class Said:
    """What a parser said of the node it stopped at: its place in the main graph, its name, its op, and a sentence.

    index -1 and no name: it means the graph as a whole.
    """

    index: int
    name: str
    op: str
    text: str


def refusals(
    model: ir.Model, first: Said, parse: Callable[[bytes], Said | None]
) -> Iterator[tuple[ir.Node | None, Said]]:
    """Everything that a parser refuses of the model, beginning with what it stopped at `first`; node None: the whole.

    `parse` reads a serialized graph, whose weights stay where they are. Ends early where the dtype of what a refused
    node computes is not known. Changes the model.
    """
    import onnx_ir as ir
    from onnx_ir.passes.common import ShapeInferencePass

    if any(value.dtype is None for node in model.graph for value in node.outputs):
        ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)
    said = first
    for _ in range(ROUNDS):
        holder, node = _meant(model, said)
        yield node, said
        if holder is None or not _cut(model.graph, holder):
            return
        more = parse(ir.to_proto(model).SerializeToString())
        if more is None:
            return
        said = more


def reason(text: str) -> str:
    """The parser's sentence without its assertion; empty where it is only `false`."""
    text = " ".join(text.split())
    asserted = re.search(r'&& "([^"]+)"', text)
    if asserted:
        return asserted[1].rstrip(".")
    text = re.sub(r"^(?:\[\d+\] )?Assertion failed: (?:.*?: )?", "", text)
    return "" if text == "false" else text.rstrip(".")


def _meant(model: ir.Model, said: Said) -> tuple[ir.Node | None, ir.Node | None]:
    """The node of the main graph that is or holds what the parser means, and that node itself."""
    nodes = list(model.graph)
    for holder in nodes:
        for node in _inside(holder):
            if said.name and node.name == said.name:
                return holder, node
    if 0 <= said.index < len(nodes) and said.op in ("", nodes[said.index].op_type):
        return nodes[said.index], nodes[said.index]
    if _REDUCTION in said.text:  # it does not say of which node
        for node in nodes:
            reduction = node.attributes.get("reduction")
            if node.op_type in ("ScatterElements", "ScatterND") and reduction and reduction.as_string() != "none":
                return node, node
    # A function of the model: the node that calls it.
    for function in model.functions.values():
        if any(said.op == node.op_type for node in function.all_nodes()):
            for node in nodes:
                if (node.domain, node.op_type) == (function.domain, function.name):
                    return node, node
    return None, None


def _inside(node: ir.Node) -> Iterator[ir.Node]:
    yield node
    for graph in origins.subgraphs(node):
        yield from graph.all_nodes()


def _cut(graph: ir.Graph, node: ir.Node) -> bool:
    """Make inputs of what the node computes and remove it; False where a dtype is not known."""
    import onnx_ir as ir

    outputs = [value for value in node.outputs if value.uses() or value.is_graph_output()]
    if any(value.dtype is None for value in outputs):
        return False
    for value in outputs:
        given = ir.Value(name=f"{value.name}_given", shape=value.shape, type=value.type)
        graph.inputs.append(given)
        for index, output in enumerate(graph.outputs):
            if output is value:  # a parser takes no input for an output
                graph.append(kept := ir.node("Identity", [given]))
                kept.outputs[0].type, kept.outputs[0].shape = value.type, value.shape
                graph.outputs[index] = kept.outputs[0]
        value.replace_all_uses_with(given)
    graph.remove(node)
    return True
