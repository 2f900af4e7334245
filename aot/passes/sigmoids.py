"""Sigmoid and softplus written out with exponentials, which overflow in FP16 where the functions do not."""

from __future__ import annotations

import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import before, nodes, only_user, replace, scalar
from aot.passes._formulas import argument, other, same_rank


@graph_pass(
    anchors=("Exp",),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,4] x) => (float[B,4] y, float[B,4] z) <float one = {1}>
    { a = Neg(x)  b = Exp(a)  c = Add(b, one)  y = Div(x, c)  d = Exp(x)  e = Add(one, d)  z = Log(e) }
    """,
)
def sigmoids(model: ir.Model, skip: Skip) -> int:
    """1 / (1 + exp(-x)) = Sigmoid(x), a / (1 + exp(-x)) = a · Sigmoid(x) and log(1 + exp(x)) = Softplus(x).

    The functions agree to the last digits wherever the exponential is finite.
    """
    changed = 0
    for node in nodes(model, "Exp"):
        add = only_user(node.outputs[0])
        top = only_user(add.outputs[0]) if add is not None and add.op_type == "Add" and not add.domain else None
        if add is None or top is None or top.domain or scalar(other(add, node.outputs[0])) != 1:
            continue
        inner = node.inputs[0]
        if inner is None or not same_rank(add.outputs[0], inner):
            continue
        x = argument(inner, {1: -1.0})
        if top.op_type == "Log":
            replace(top, "Softplus", [inner])
        elif x is None or not same_rank(x, inner):
            continue
        elif top.op_type == "Reciprocal":
            replace(top, "Sigmoid", [x])
        elif top.op_type == "Div" and top.inputs[1] is add.outputs[0] and top.inputs[0] is not add.outputs[0]:
            replace(top, "Mul", [top.inputs[0], before(top, "Sigmoid", [x])])
        else:
            continue
        changed += 1
    return changed
