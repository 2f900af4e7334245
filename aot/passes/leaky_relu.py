"""Leaky ReLU and PReLU written out."""

from __future__ import annotations

import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import array, constant, dims, made_by, nodes, replace, scalar
from aot.passes._formulas import argument, is_single, other, polynomial, same_rank


@graph_pass(
    anchors=("Max", "Where", "Relu"),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,2,4] x) => (float[B,2,4] y, float[B,2,4] z)
    <float a = {0.1}, float zero = {0}, float[2,1] s = {-0.2, 0.5}>
    { b = Mul(x, a)  c = Greater(x, zero)  y = Where(c, x, b)  p = Relu(x)  m = Neg(x)  q = Relu(m)  r = Mul(q, s)
      z = Add(p, r) }
    """,
)
def leaky_relu(model: ir.Model, skip: Skip) -> int:
    """max(x, a·x) with 0 <= a <= 1 and where(x > 0, x, a·x) are LeakyRelu(x; a); relu(x) + s·relu(-x) with a constant s
    is PRelu(x; -s), and LeakyRelu where s is a number."""
    changed = 0
    for node in nodes(model, "Max", "Where"):
        slope = _of_larger(node) if node.op_type == "Max" else _of_choice(node)
        if slope is not None:
            x, alpha = slope
            replace(node, "LeakyRelu", [x], {"alpha": alpha})
            changed += 1
    for node in nodes(model, "Add", "Sub"):
        changed += _of_halves(model, node)
    return changed


def _slope(value: ir.Value | None, x: ir.Value | None) -> float | None:
    """a where `value` is a·x, and has its shape."""
    found = polynomial(value, x) if value is not None and x is not None else None
    if found is None or found.keys() != {1} or value is None or x is None or not same_rank(value, x):
        return None
    return found[1] if is_single(x) else None


def _of_larger(node: ir.Node) -> tuple[ir.Value, float] | None:
    if len(node.inputs) != 2:
        return None
    for x, product in (node.inputs, reversed(node.inputs)):
        slope = _slope(product, x) if product is not x else None
        if x is not None and slope is not None and 0 <= slope <= 1:
            return x, slope
    return None


def _of_choice(node: ir.Node) -> tuple[ir.Value, float] | None:
    order = made_by(node.inputs[0], "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    if order is None or scalar(order.inputs[1]) != 0:
        return None
    kept, scaled = node.inputs[1:] if order.op_type.startswith("Greater") else node.inputs[2:0:-1]
    slope = _slope(scaled, kept) if kept is order.inputs[0] else None
    return (kept, slope) if kept is not None and slope is not None and same_rank(node.outputs[0], kept) else None


def _of_halves(model: ir.Model, node: ir.Node) -> int:
    """relu(x) + s·relu(-x)."""
    left, right = node.inputs
    for positive, product in ((left, right), (right, left))[: 2 if node.op_type == "Add" else 1]:
        relu, mul = made_by(positive, "Relu"), made_by(product, "Mul")
        if relu is None or mul is None:
            continue
        x = relu.inputs[0]
        for factor in mul.inputs:
            negative = made_by(other(mul, factor), "Relu") if factor is not None else None
            data = array(factor) if negative is not None else None
            if x is None or negative is None or data is None or argument(negative.inputs[0], {1: -1.0}) is not x:
                continue
            slope = data if node.op_type == "Sub" else -data
            if not is_single(x) or not _reaches(slope.shape, x) or not same_rank(node.outputs[0], x):
                continue
            if slope.size == 1:
                replace(node, "LeakyRelu", [x], {"alpha": float(slope.reshape(()))})
            else:
                replace(node, "PRelu", [x, constant(model, f"{node.outputs[0].name}_slope", slope)])
            return 1
    return 0


def _reaches(slope: tuple[int, ...], x: ir.Value) -> bool:
    """Whether a constant of that shape broadcasts to x without adding to its shape."""
    shape = dims(x)
    if shape is None or len(slope) > len(shape):
        return False
    return all(size in (1, full) for size, full in zip(slope, shape[len(shape) - len(slope) :], strict=True))
