"""Bounds written as minimum and maximum."""

from __future__ import annotations

import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import array, bypass, constant, nodes, opset, replace, scalar
from aot.passes._formulas import other, same_rank


@graph_pass(
    anchors=("Max", "Min"),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,4] x) => (float[B,4] y, float[B,4] z) <float low = {-1}, float high = {2}, float zero = {0}>
    { a = Max(x, low)  y = Min(high, a)  z = Max(x, zero) }
    """,
)
def clip_bounds(model: ir.Model, skip: Skip) -> int:
    """max(x, a) = Clip(x, a), min(x, b) = Clip(x, , b) and max(x, 0) = Relu(x), for numbers a and b; max(x, -inf) = x.

    Clips in a row become one. FP16 holds less than FP32: of a Clip it is known that a bound beyond its range may be
    brought into it.
    """
    changed = 0
    for node in nodes(model, "Max", "Min") if opset(model) >= 11 else ():
        bounds = [value for value in node.inputs if scalar(value) is not None]
        if len(node.inputs) != 2 or len(bounds) != 1 or bounds[0] is None:
            continue
        bound, x = bounds[0], other(node, bounds[0])
        number, data = scalar(bound), array(bound)
        if x is None or x.dtype is None or not x.dtype.is_floating_point() or not same_rank(node.outputs[0], x):
            continue
        if number is None or data is None or number != number:
            continue
        if number == (float("-inf") if node.op_type == "Max" else float("inf")):
            bypass(node, x)
        elif number == 0 and node.op_type == "Max":
            replace(node, "Relu", [x])
        else:
            limit = bound if data.ndim == 0 else constant(model, f"{bound.name}_bound", data.reshape(()))
            replace(node, "Clip", [x, limit] if node.op_type == "Max" else [x, None, limit])
        changed += 1
    return changed
