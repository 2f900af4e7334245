"""Softmax written out with exponentials."""

from __future__ import annotations

import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import array, attribute, dims, made_by, nodes, only_user, opset, replace, same


@graph_pass(
    anchors=("Exp", "ReduceLogSumExp", "Softmax"),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,S,4] x) => (float[B,S,4] y) <int64[1] last = {-1}>
    { m = ReduceMax(x, last)  d = Sub(x, m)  e = Exp(d)  s = ReduceSum(e, last)  y = Div(e, s) }
    """,
)
def softmax_parts(model: ir.Model, skip: Skip) -> int:
    """exp(x - max(x)) / sum(exp(x - max(x))) = exp(x) / sum(exp(x)) = Softmax(x) and x - log(sum(exp(x))) =
    LogSoftmax(x), along one axis. Softmax along the last axis takes rows in any number of dims, so that none have to be
    laid out for it and back, as they were before opset 13."""
    if opset(model) < 13:
        return 0  # before, an axis stood for all behind it
    changed = 0
    for node in nodes(model, "Div"):
        exp = made_by(node.inputs[0], "Exp")
        axis = _axis(node.inputs[1], "ReduceSum", exp.outputs[0]) if exp is not None else None
        if exp is not None and axis is not None:
            replace(node, "Softmax", [_unmoved(exp.inputs[0], axis)], {"axis": axis})
            changed += 1
    for node in nodes(model, "Sub"):
        x = node.inputs[0]
        axis = _axis(node.inputs[1], "ReduceLogSumExp", x) if x is not None else None
        if axis is not None:
            replace(node, "LogSoftmax", [_unmoved(x, axis)], {"axis": axis})
            changed += 1
    for node in nodes(model, "Softmax"):
        changed += _laid_out(node)
    return changed


def _laid_out(node: ir.Node) -> int:
    """Reshape(Softmax(Reshape(x))) = Softmax(x), where the last axis stays what it is."""
    flat, back = made_by(node.inputs[0], "Reshape", "Flatten"), only_user(node.outputs[0])
    if flat is None or back is None or back.domain or back.op_type not in ("Reshape", "Flatten"):
        return 0
    before, inside, after = dims(flat.inputs[0]), dims(node.inputs[0]), dims(back.outputs[0])
    if not before or not inside or not after or back.graph is not node.graph or len(before) != len(after):
        return 0
    if attribute(node, "axis", -1) not in (-1, len(inside) - 1) or not same(before[-1], inside[-1]):
        return 0
    if not all(map(same, before, after)):
        return 0
    replace(back, "Softmax", [flat.inputs[0]], {"axis": -1}, like=node)
    return 1


def _unmoved(value: ir.Value | None, axis: int) -> ir.Value | None:
    """x where `value` is x less its largest number along the axis."""
    difference = made_by(value, "Sub")
    x = difference.inputs[0] if difference is not None else None
    if difference is None or x is None or _axis(difference.inputs[1], "ReduceMax", x) != axis:
        return value
    return x


def _axis(value: ir.Value | None, op: str, x: ir.Value) -> int | None:
    """The one axis along which `value` is that reduction of x, as broadcasts to x; counted from 0."""
    shape, expanded = dims(x), made_by(value, "Unsqueeze", "Reshape")
    reduction = made_by(value if expanded is None else expanded.inputs[0], op)
    if shape is None or reduction is None or reduction.inputs[0] is not x:
        return None
    given = array(reduction.inputs[1]) if len(reduction.inputs) > 1 else attribute(reduction, "axes")
    if given is None or len(given) != 1:
        return None
    axis, rank = int(given[0]) % len(shape), len(shape)
    if attribute(reduction, "keepdims", 1):
        return axis if expanded is None else None
    if expanded is None:
        return axis if axis == 0 else None  # what is left lines up with the axes behind
    target = array(expanded.inputs[1])
    if target is None:
        return None
    if expanded.op_type == "Unsqueeze":
        return axis if [int(one) % rank for one in target] == [axis] else None
    return axis if rank == 2 and axis == 1 and target.tolist() == [-1, 1] else None
