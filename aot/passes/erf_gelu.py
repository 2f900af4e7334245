"""GELU written out with the error function."""

from __future__ import annotations

import math

import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import made_by, nodes, only_user, replace, scalar


def _close(number: float | None, to: float) -> bool:
    return number is not None and math.isclose(number, to, rel_tol=1e-3)


def _argument(erf: ir.Node) -> ir.Value | None:
    """x where the node is Erf(x / sqrt(2))."""
    inner = made_by(erf.inputs[0], "Div", "Mul")
    if inner is None:
        return None
    a, b = inner.inputs
    if inner.op_type == "Div":
        return a if _close(scalar(b), math.sqrt(2)) else None
    return a if _close(scalar(b), math.sqrt(0.5)) else b if _close(scalar(a), math.sqrt(0.5)) else None


def _factors(value: ir.Value, x: ir.Value) -> list[ir.Value]:
    """The factors of a product, x itself and constants taken as they are."""
    mul = made_by(value, "Mul") if value is not x else None
    if mul is None or any(v is None for v in mul.inputs):
        return [value]
    return [factor for v in mul.inputs if v is not None for factor in _factors(v, x)]


@graph_pass(
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,4] x) => (float[B,4] y) <float root = {1.4142135}, float one = {1}, float half = {0.5}>
    { a = Div(x, root)  b = Erf(a)  c = Add(b, one)  d = Mul(x, c)  y = Mul(d, half) }
    """
)
def erf_gelu(model: ir.Model, skip: Skip) -> int:
    """x · (1 + erf(x / sqrt(2))) / 2 = Gelu(x), in whatever order the three factors are multiplied."""
    changed = 0
    for erf in nodes(model, "Erf"):
        x = _argument(erf)
        add = only_user(erf.outputs[0])
        if x is None or add is None or add.op_type != "Add" or not any(_close(scalar(v), 1.0) for v in add.inputs):
            skip(erf, "not of the form 1 + erf(x / sqrt(2))")
            continue
        top = only_user(add.outputs[0])
        while top is not None and top.op_type == "Mul":
            rest = [f for f in _factors(top.outputs[0], x) if f is not add.outputs[0]]
            if len(rest) == 2 and x in rest and any(_close(scalar(f), 0.5) for f in rest):
                replace(top, "Gelu", [x], {"approximate": "none"})
                changed += 1
                break
            top = only_user(top.outputs[0])
        else:
            skip(erf, "the product is not x · (1 + erf(x / sqrt(2))) / 2")
    return changed
