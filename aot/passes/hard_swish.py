"""Piecewise linear activations written out: hard sigmoid and hard swish."""

from __future__ import annotations

import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import attribute, before, nodes, opset, replace, scalar
from aot.passes._formulas import argument, close, is_single, product_of, same_rank

_SIXTH = 1 / 6
_SHAPE = {"alpha": _SIXTH, "beta": 0.5}


@graph_pass(
    in_one_sweep=True,
    anchors=("Clip", "HardSigmoid"),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,4] x) => (float[B,4] y) <float three = {3}, float low = {0}, float six = {6}>
    { a = Add(x, three)  c = Clip(a, low, six)  p = Mul(x, c)  y = Div(p, six) }
    """,
)
def hard_swish(model: ir.Model, skip: Skip) -> int:
    """x · clip(x + 3, 0, 6) / 6 = x · clip(x/6 + 1/2, 0, 1) = x · HardSigmoid(x; 1/6, 1/2) = HardSwish(x), and
    clip(x + 3, 0, 6) / 6 by itself is HardSigmoid(x; 1/6, 1/2). Before opset 14, which brought HardSwish, it is
    x · HardSigmoid(x; 1/6, 1/2)."""
    changed = 0
    for node in nodes(model, "Clip", "HardSigmoid"):
        found = _gate(node)
        if found is None:
            continue
        x, top = found
        swish = product_of(node.outputs[0], x, 1 / top)
        if swish is not None and opset(model) >= 14:
            replace(swish, "HardSwish", [x])
            changed += 1
            continue
        if swish is not None:
            if node.op_type == "Clip":
                replace(swish, "Mul", [x, before(swish, "HardSigmoid", [x], _SHAPE)])
                changed += 1
            continue
        sigmoid = node if top == 1 else product_of(node.outputs[0], None, 1 / top)
        if node.op_type == "Clip" and sigmoid is not None and same_rank(sigmoid.outputs[0], x):
            replace(sigmoid, "HardSigmoid", [x], _SHAPE)
            changed += 1
    return changed


def _gate(node: ir.Node) -> tuple[ir.Value, float] | None:
    """(x, top) where the node is top · clip(x/6 + 1/2, 0, 1)."""
    x = node.inputs[0]
    if not is_single(x):
        return None
    if node.op_type == "HardSigmoid":
        slope, middle = attribute(node, "alpha", 0.2), attribute(node, "beta", 0.5)
        return (x, 1.0) if x is not None and close(slope, _SIXTH, x.dtype) and middle == 0.5 else None
    if len(node.inputs) < 3 or scalar(node.inputs[1]) != 0:
        return None
    top = scalar(node.inputs[2])
    if not top:
        return None
    inner = argument(x, {0: top / 2, 1: top / 6})
    return (inner, top) if inner is not None else None
