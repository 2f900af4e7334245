"""Bounds within bounds."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import array, attribute, bypass, constant, made_by, nodes, only_user, replace

_Bounds = tuple[float, float]


@graph_pass(
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,2] x) => (float[B,2] y) <float low = {0}, float high = {6}>
    { r = Relu(x)  y = Clip(r, low, high) }
    """,
    anchors=("Clip", "Relu"),
)
def merge_clips(model: ir.Model, skip: Skip) -> int:
    """Relu and Clip in a row are one Clip: clamping to [a, b], then to [c, d], clamps to [a, b] with both ends clamped
    to [c, d]. The second is the first alone where [a, b] lies within [c, d]. Relu clamps to [0, inf].
    """
    changed = 0
    for second in nodes(model, "Clip", "Relu"):
        first = made_by(second.inputs[0], "Clip", "Relu")
        inner, outer = _bounds(first), _bounds(second)
        if first is None or inner is None or outer is None:
            continue
        (a, b), (c, d) = inner, outer
        if c <= a and b <= d:
            bypass(second, first.outputs[0])
        elif only_user(first.outputs[0]) is second:
            _clip(model, second, first.inputs[0], min(max(a, c), d), min(max(b, c), d))
        else:
            skip(second, "what it clips is needed too")
            continue
        changed += 1
    return changed


def _bounds(node: ir.Node | None) -> _Bounds | None:
    """The constant ends of the interval that a node clamps to, None where they are computed or in the wrong order."""
    if node is None:
        return None
    if node.op_type == "Relu":
        return 0.0, math.inf
    low, high = attribute(node, "min", -math.inf), attribute(node, "max", math.inf)
    for at in (1, 2):
        value = node.inputs[at] if at < len(node.inputs) else None
        if value is None:
            continue
        held = array(value)
        if held is None or held.size != 1:
            return None
        low, high = (float(held.item()), high) if at == 1 else (low, float(held.item()))
    return (low, high) if low <= high else None


def _clip(model: ir.Model, node: ir.Node, x: ir.Value | None, low: float, high: float) -> None:
    """Put a Clip of `x` in the place of `node`, in the form of the model's opset; a Relu where that is what it is."""
    kind = node.outputs[0].dtype
    if (low, high) == (0.0, math.inf):
        replace(node, "Relu", [x])
    elif model.opset_imports.get("", 0) < 11 or kind is None:
        replace(node, "Clip", [x], {name: v for name, v in (("min", low), ("max", high)) if math.isfinite(v)})
    else:
        ends = [
            constant(model, f"{node.outputs[0].name}_{name}", np.array(end).astype(kind.numpy()))
            if math.isfinite(end)
            else None
            for name, end in (("low", low), ("high", high))
        ]
        replace(node, "Clip", [x, *ends] if ends[1] is not None else [x, ends[0]])
