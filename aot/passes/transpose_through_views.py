"""A transpose of the last two dims that was written with two reshapes around it."""

from __future__ import annotations

import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import attribute, dims, made_by, nodes, replace, same


@graph_pass(
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,2,S,3] x) => (float[B,2,3,S] y) <int64[1] any = {-1}, int64[1] heads = {2}>
    { b = Shape<start = 0, end = 1>(x)  s = Shape<start = 2, end = 3>(x)  d = Shape<start = 3, end = 4>(x)
      flat = Concat<axis = 0>(any, s, d)  r = Reshape(x, flat)  t = Transpose<perm = [0, 2, 1]>(r)
      back = Concat<axis = 0>(b, heads, d, s)  y = Reshape(t, back) }
    """
)
def transpose_through_views(model: ir.Model, skip: Skip) -> int:
    """Reshape(Transpose(Reshape(x, [-1, m, n]), [0, 2, 1]), [..., n, m]) = Transpose(x, last two dims swapped).

    Flattening the leading dims and restoring them leaves the matrices in the last two dims alone. This is how the
    export of scaled dot-product attention transposes its keys.
    """
    changed = 0
    for last in nodes(model, "Reshape"):
        middle = made_by(last.inputs[0], "Transpose")
        first = made_by(middle.inputs[0], "Reshape") if middle is not None else None
        if middle is None or first is None or tuple(attribute(middle, "perm", ())) != (0, 2, 1):
            continue
        x, flat, y = dims(first.inputs[0]), dims(first.outputs[0]), dims(last.outputs[0])
        if x is None or flat is None or y is None or len(x) < 3 or len(y) != len(x):
            skip(last, "the rank of the value before or after is not known or differs")
            continue
        swapped = (*x[:-2], x[-1], x[-2])
        if not all(map(same, flat[1:], x[-2:])) or not all(map(same, y, swapped)):
            skip(last, f"{list(x)} through {list(flat)} to {list(y)} is not known to be a transpose")
            continue
        rank = len(x)
        replace(last, "Transpose", [first.inputs[0]], {"perm": [*range(rank - 2), rank - 1, rank - 2]})
        changed += 1
    return changed
