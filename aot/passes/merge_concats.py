"""Parts that are joined in two steps, or as they were split."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import array, attribute, bypass, constant, dims, made_by, nodes, only_user, replace


@graph_pass(
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,4] x, float[B,2] z) => (float[B,8] y)
    { a, b = Split<axis = 1, num_outputs = 2>(x)  s = Concat<axis = 1>(a, b)  r = Relu(s)
      c = Concat<axis = 1>(r, z)  y = Concat<axis = -1>(z, c) }
    """,
    anchors=("Concat",),
)
def merge_concats(model: ir.Model, skip: Skip) -> int:
    """A concatenation of a concatenation along the same axis is one; the parts of a Split in their order are what was
    split; what has no element along the axis adds nothing.
    """
    changed = 0
    for node in nodes(model, "Concat"):
        shape, axis = dims(node.outputs[0]), attribute(node, "axis")
        if shape is None:
            skip(node, "its rank is not known")
            continue
        axis %= len(shape)
        split = made_by(node.inputs[0], "Split")
        if split is not None and _joins(node, split) and attribute(split, "axis", 0) % len(shape) == axis:
            bypass(node, split.inputs[0])  # type: ignore[arg-type]
            changed += 1
            continue
        parts: list[ir.Value | None] = []
        for value in node.inputs:
            inner = made_by(value, "Concat")
            if (
                inner is not None
                and only_user(inner.outputs[0]) is node
                and attribute(inner, "axis") % len(shape) == axis
            ):
                parts += inner.inputs
            elif (known := dims(value)) is None or known[axis] != 0:
                parts.append(value)
        if parts and len(parts) != len(node.inputs):
            replace(node, "Concat", parts, {"axis": axis})
            changed += 1
    return changed


def _joins(node: ir.Node, split: ir.Node) -> bool:
    """Whether `node` reads the outputs of `split`, all of them, in order."""
    return split.inputs[0] is not None and list(map(id, node.inputs)) == list(map(id, split.outputs))


@graph_pass(
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,3,4] x) => (float[B,1,4] y) <int64 two = {2}, int64[1] at = {1}>
    { g = Gather<axis = 1>(x, two)  y = Unsqueeze(g, at) }
    """,
    anchors=("Gather",),
)
def kept_picks(model: ir.Model, skip: Skip) -> int:
    """Unsqueeze(Gather(x, i)) where the dim comes back at its place is the Slice of x from i to i+1, which keeps it."""
    changed = 0
    if model.opset_imports.get("", 0) < 10:
        return 0
    for node in nodes(model, "Unsqueeze"):
        pick = made_by(node.inputs[0], "Gather")
        shape, index = (dims(pick.inputs[0]), array(pick.inputs[1])) if pick is not None else (None, None)
        if pick is None or shape is None or index is None or index.ndim or only_user(pick.outputs[0]) is not node:
            continue
        axes = array(node.inputs[1]) if len(node.inputs) > 1 else np.array(attribute(node, "axes"))
        axis = attribute(pick, "axis", 0) % len(shape)
        if axes is None or [int(one) % len(shape) for one in axes.reshape(-1)] != [axis]:
            continue
        at = int(index)
        window = {"starts": at, "ends": at + 1 if at != -1 else 2**63 - 1, "axes": axis}
        given = [constant(model, f"{node.outputs[0].name}_{name}", np.array([v])) for name, v in window.items()]
        replace(node, "Slice", [pick.inputs[0], *given])
        changed += 1
    return changed
