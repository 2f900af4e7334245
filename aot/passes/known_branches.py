"""`If` whose condition is known."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from aot import origins
from aot.graph import Skip, discard, graph_pass
from aot.passes._edit import attribute, constant, nodes, scalar


@graph_pass(
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,4] x) => (float[B,4] y) <bool yes = {1}> {
      z = If (yes) <then_branch = t () => (float[B,4] p) { a = Relu(x)  p = Exp(a) },
                    else_branch = e () => (float[B,4] q) { q = Neg(x) }>
      y = Abs(z) }
    """,
    anchors=("If",),
)
def known_branches(model: ir.Model, skip: Skip) -> int:
    """An If with a constant condition is the branch that it takes."""
    changed = 0
    for node in nodes(model, "If"):
        taken = scalar(node.inputs[0])
        if taken is None:
            skip(node, "its condition is computed")
            continue
        inline(model, node, attribute(node, "then_branch" if taken else "else_branch"))
        changed += 1
    return changed


def inline(model: ir.Model, node: ir.Node, branch: ir.Graph) -> None:
    """Move the nodes and initializers of a branch in front of the If, and let its readers read the results."""
    results = list(branch.outputs)
    branch.outputs.clear()
    for value in tuple(branch.initializers.values()):
        assert value.const_value is not None
        moved = constant(model, str(value.name), value.const_value.numpy())
        value.replace_all_uses_with(moved)
        results = [moved if one is value else one for one in results]
    inner = list(branch)
    branch.remove(inner)
    put_in_place(node, inner, results)


def put_in_place(node: ir.Node, inner: Sequence[ir.Node], results: Sequence[ir.Value]) -> None:
    """Put nodes that are in no graph in front of one that holds bodies, and let its readers read `results`; it goes."""
    graph = node.graph
    assert graph is not None
    for one in inner:
        if origins.of(one) is None:
            origins.hand_on(node, one)
    graph.insert_before(node, inner)
    # What an output of the graph is called is said by an Identity; it may be an outer value, or the same one twice.
    for output, value in zip(node.outputs, results, strict=True):
        if output.is_graph_output():
            named = ir.node("Identity", [value], name=node.name, metadata_props=dict(node.metadata_props))
            graph.insert_before(node, named)
            made = named.outputs[0]
            made.name, made.shape, made.type = output.name, output.shape, output.type
            output.replace_all_uses_with(made, replace_graph_outputs=True)
        else:
            output.replace_all_uses_with(value)
    discard(node)
