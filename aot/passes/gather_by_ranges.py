"""A gather whose indices count through the dims of what it gathers from."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import Dim, array, attribute, constant, dims, made_by, nodes, opset, replace, same, scalar


def _counter(value: ir.Value | None) -> tuple[int, Dim] | None:
    """(axis from the end, size) where `value` is 0, 1, ..., size-1 along that axis and constant along the others."""
    node = made_by(value, "Range", "Unsqueeze", "Expand")
    if node is None or value is None:
        return None
    if node.op_type == "Range":
        shape = dims(value)
        if shape is None or scalar(node.inputs[0]) != 0 or scalar(node.inputs[2]) != 1:
            return None
        return -1, shape[0]
    inner = _counter(node.inputs[0])
    if inner is None:
        return None
    axis, size = inner
    before, after = dims(node.inputs[0]), dims(value)
    if before is None or after is None:
        return None
    if node.op_type == "Expand":
        # The counted axis keeps its size; the others repeat it.
        return inner if same(after[axis], size) else None
    axes = array(node.inputs[1]) if len(node.inputs) > 1 else attribute(node, "axes")
    if axes is None:
        return None
    added = {int(axis) % len(after) for axis in axes}
    kept = [i for i in range(len(after)) if i not in added]
    return kept[axis] - len(after), size


@graph_pass(
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,S] x) => (float[B,1,S] y)
    <int64 zero = {0}, int64 one = {1}, int64[1] last = {-1}, int64[2] right = {1, 2}, int64[2] left = {0, 1},
     int64[B] rows, int64[S] columns>
    { b = Shape<start = 0, end = 1>(x)  b0 = Squeeze(b)  s = Shape<start = 1, end = 2>(x)  s0 = Squeeze(s)
      rows = Range(zero, b0, one)  columns = Range(zero, s0, one)
      r3 = Unsqueeze(rows, right)  c3 = Unsqueeze(columns, left)
      both = Max(r3, c3)  shape = Shape(both)  re = Expand(r3, shape)  ce = Expand(c3, shape)
      r4 = Unsqueeze(re, last)  c4 = Unsqueeze(ce, last)  index = Concat<axis = -1>(r4, c4)
      y = GatherND(x, index) }
    """
)
def gather_by_ranges(model: ir.Model, skip: Skip) -> int:
    """GatherND(x, index) = Unsqueeze(x) where component k of the index counts 0, 1, ..., d_k - 1 along an axis of
    its own, d_k being x's k-th dim, and those axes come in order: element (..., i, ..., j, ...) is then x[i, j].

    transformers makes its padding mask in this way, from the position of the batch and of the key.
    """
    changed = 0
    for node in nodes(model, "GatherND"):
        x, out = dims(node.inputs[0]), dims(node.outputs[0])
        parts = made_by(node.inputs[1], "Concat")
        if x is None or out is None or parts is None or attribute(node, "batch_dims", 0) != 0:
            continue
        index = dims(parts.outputs[0])
        if index is None or attribute(parts, "axis") not in (-1, len(index) - 1) or len(parts.inputs) != len(x):
            skip(node, "the index is not one counter for every dim of the data")
            continue
        places = []
        for part, size in zip(parts.inputs, x, strict=True):
            # The last dim of the index holds its components, so axes of the output are one further left.
            found = _counter(part)
            shape = dims(part)
            if found is None or shape is None or shape[-1] != 1 or not same(found[1], size):
                break
            places.append(len(shape) + found[0])
        if len(places) != len(x) or places != sorted(set(places)):
            skip(node, "the index is not known to count through the data in order")
            continue
        added = [i for i in range(len(out)) if i not in places]
        if any(out[i] != 1 for i in added):
            skip(node, "the gathered values are repeated along another dim")
            continue
        if opset(model) < 13:
            replace(node, "Unsqueeze", [node.inputs[0]], {"axes": added})
        else:
            axes = constant(model, f"{node.outputs[0].name}_axes", np.array(added, np.int64))
            replace(node, "Unsqueeze", [node.inputs[0], axes])
        changed += 1
    return changed
