"""Resizing to sizes that are computed from the sizes there are."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._contents import Contents, Number
from aot.passes._edit import array, attribute, constant, nodes
from aot.passes._symbols import quotient


def _scale(before: Number, after: Number) -> float | None:
    """after / before, where a resize by it gives a dim of exactly that size; None where that is not certain."""
    if isinstance(before, int) and isinstance(after, int) and before > 0:
        scale = np.float32(after) / np.float32(before)
        return float(scale) if int(np.floor(np.float32(before) * scale)) == after else None
    # A multiple by a whole number is exact whatever the size; a fraction of it need not be.
    times = quotient(after, before)
    return float(times) if isinstance(times, int) and times > 0 else None


@graph_pass(
    anchors=("Resize",),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,2,S,3] x) => (float[B,2,T,6] y) <int64 two = {2}>
    { c = Shape<start = 0, end = 2>(x)  s = Shape<start = 2, end = 4>(x)  d = Mul(s, two)  t = Concat<axis = 0>(c, d)
      y = Resize<mode = "linear">(x, , , t) }
    """,
)
def resize_scales(model: ir.Model, skip: Skip) -> int:
    """Resize(x, sizes) = Resize(x, scales) with scales = sizes / the sizes of x, which is how the op is defined, where
    the quotients are constants and give the same sizes again. What computed the sizes is then not needed.
    """
    asked = [node for node in nodes(model, "Resize") if _by_computed_sizes(node)]
    contents = Contents(model)
    makers = _makers([node.inputs[3] for node in asked])
    for node in tuple(model.graph.all_nodes()) if makers else ():
        if node in makers:
            contents.visit(node)
    changed = 0
    for node in asked:
        before, after = contents.dims(node.inputs[0]), contents.of(node.inputs[3])
        if before is None or after is None or len(before) != after.size:
            continue
        scales = [_scale(was, now) for was, now in zip(before, after.tolist(), strict=True)]
        if None in scales:
            skip(node, "its sizes are not known to be those of its input times constants")
            continue
        told = constant(model, f"{node.outputs[0].name}_scales", np.array(scales, np.float32))
        node.replace_input_with(2, told)
        node.resize_inputs(3)
        changed += 1
    return changed


def _by_computed_sizes(node: ir.Node) -> bool:
    sizes = node.inputs[3] if len(node.inputs) > 3 else None
    stretched = attribute(node, "keep_aspect_ratio_policy", "stretch") == "stretch" and "axes" not in node.attributes
    cropped = attribute(node, "coordinate_transformation_mode", "") == "tf_crop_and_resize"
    return sizes is not None and array(sizes) is None and stretched and not cropped


def _makers(values: list[ir.Value | None]) -> set[ir.Node]:
    """The nodes that compute small integers for these values, down to the Shape nodes."""
    found: set[ir.Node] = set()
    while values:
        value = values.pop()
        node = value.producer() if value is not None else None
        if node is not None and node not in found:
            found.add(node)
            values += node.inputs if node.op_type not in ("Shape", "Size") else ()
    return found
