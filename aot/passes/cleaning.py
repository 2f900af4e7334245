"""The cleaning passes: what onnx_ir and onnxscript already do well, under the contract of `aot.graph`."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from aot.graph import Skip, graph_pass
from aot.passes._edit import bypass, nodes

# Elements. Larger results stay computed, so that folding never makes the file much bigger.
_FOLD_INPUT = 1 << 16
_FOLD_OUTPUT = 1 << 18


def _count(model: ir.Model) -> int:
    return sum(1 for _ in model.graph.all_nodes())


@graph_pass(
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,4] x) => (float[B,4] y) <float[4] a = {1, 2, 3, 4}, float[4] b = {4, 3, 2, 1}>
    { c = Add(a, b)  y = Mul(x, c) }
    """
)
def fold_constants(model: ir.Model, skip: Skip) -> int:
    """A node whose inputs are all constants is its result, computed once, where the result is small.

    Weights behind a Transpose become transposed weights, so that a MatMul sees its weight directly.
    """
    from onnxscript.optimizer import fold_constants as fold

    before = _count(model)
    common.LiftSubgraphInitializersToMainGraphPass()(model)
    fold(model, onnx_shape_inference=False, input_size_limit=_FOLD_INPUT, output_size_limit=_FOLD_OUTPUT)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    common.RemoveUnusedNodesPass()(model)
    return max(before - _count(model), 0)


@graph_pass(
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,4] x) => (float[B,4] y) { t = Identity(x)  u = Relu(t)  y = Add(u, t) }
    """
)
def drop_identities(model: ir.Model, skip: Skip) -> int:
    """Identity(x) = x. One that is an output stays where x is an output too, or not computed in the same graph: what
    two outputs share, and an outer value that a subgraph hands out, need a name of their own.
    """
    before = _count(model)
    for node in nodes(model, "Identity"):
        (value,), (result,) = node.inputs, node.outputs
        maker = value.producer() if value is not None else None
        if value is None:
            continue
        if not result.is_graph_output():
            bypass(node, value)
        elif maker is not None and maker.graph is node.graph and not value.is_graph_output():
            _take_over(value, result, node)
    return before - _count(model)


def _take_over(value: ir.Value, output: ir.Value, node: ir.Node) -> None:
    """Make `value` the output of the graph, under its name, in place of what Identity `node` made of it."""
    name, graph = output.name, node.graph
    assert graph is not None
    value.shape, value.type = value.shape or output.shape, value.type or output.type
    ir.convenience.replace_all_uses_with(output, value, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    value.name = name


@graph_pass(
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,4] x) => (float[B,4] y) { a = Exp(x)  b = Exp(x)  y = Add(a, b) }
    """
)
def share_subexpressions(model: ir.Model, skip: Skip) -> int:
    """Two nodes of the same op, attributes and inputs are one node; so are two equal small constants."""
    before = _count(model)
    common.DeduplicateInitializersPass()(model)
    common.CommonSubexpressionEliminationPass()(model)
    return before - _count(model)


@graph_pass(
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,4] x) => (float[B,4] y) <float[1] unused = {1}> { a = Exp(x)  b = Neg(a)  y = Relu(x) }
    """
)
def drop_dead(model: ir.Model, skip: Skip) -> int:
    """What no output depends on is not computed, nor kept."""
    before = _count(model)
    common.RemoveUnusedNodesPass()(model)
    common.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    common.RemoveUnusedOpsetsPass()(model)
    return before - _count(model)
