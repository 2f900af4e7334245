"""What no output depends on, and names for what has one already."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from aot.graph import Skip, drop_unread, graph_pass
from aot.graph.state import STATE, State
from aot.passes._edit import bypass, nodes, refine


@graph_pass(
    in_one_sweep=True,
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,4] x) => (float[B,4] y) { t = Identity(x)  u = Relu(t)  y = Add(u, t) }
    """,
)
def drop_identities(model: ir.Model, skip: Skip) -> int:
    """Identity(x) = x. One that is an output stays where x is an output too, or not computed in the same graph: what
    two outputs share, and an outer value that a subgraph hands out, need a name of their own.
    """
    changed = 0
    for node in nodes(model, "Identity"):
        (value,), (result,) = node.inputs, node.outputs
        if value is None:
            continue
        maker = value.producer()
        if not result.is_graph_output():
            bypass(node, value)
        elif maker is not None and maker.graph is node.graph and not value.is_graph_output():
            _take_over(value, result, node)
        else:
            continue
        changed += 1
    return changed


def _take_over(value: ir.Value, output: ir.Value, node: ir.Node) -> None:
    """Make `value` the output of the graph, under its name, in place of what Identity `node` made of it."""
    name, graph = output.name, node.graph
    assert graph is not None
    refine(value, output)
    ir.convenience.replace_all_uses_with(output, value, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    value.name = name


@graph_pass(
    blind=True,
    in_one_sweep=True,
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,4] x) => (float[B,4] y) <float[1] unused = {1}> { a = Exp(x)  b = Neg(a)  y = Relu(x) }
    """,
)
def drop_dead(model: ir.Model, skip: Skip) -> int:
    """What no output depends on is not computed, nor kept."""
    state: State | None = model.meta.get(STATE)
    removed = 0 if state is not None and state.tidy else drop_unread(model.graph)
    if state is not None:
        state.tidy = True
    if model.functions:
        common.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    if model.functions or model.opset_imports.keys() != {""}:
        common.RemoveUnusedOpsetsPass()(model)
    return removed
