"""Reshape targets that are computed although they need not be."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import array, constant, dims, nodes, replace, same


@graph_pass(
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,S,6] x) => (float[B,S,3,2] y) <int64[2] tail = {3, 2}>
    { b = Shape<start = 0, end = 1>(x)  s = Shape<start = 1, end = 2>(x)
      t = Concat<axis = 0>(b, s, tail)  y = Reshape<allowzero = 1>(x, t) }
    """
)
def static_reshape(model: ir.Model, skip: Skip) -> int:
    """Reshape(x, computed) = Reshape(x, constant), where 0 stands for a dim that x has at the same place and one -1
    for what is left.

    The output's dims come from shape inference, which follows the shape tensor. A 0 is preferred to -1, since it is
    right for empty tensors as well.
    """
    changed = 0
    for node in nodes(model, "Reshape"):
        before, after = dims(node.inputs[0]), dims(node.outputs[0])
        if array(node.inputs[1]) is not None:
            continue
        if before is None or after is None:
            skip(node, "the rank of the input or output is not known")
            continue
        target = [
            0 if i < len(before) and same(before[i], dim) else dim if isinstance(dim, int) else -1
            for i, dim in enumerate(after)
        ]
        if target.count(-1) > 1 or 0 in after:
            skip(node, f"more than one dim of {list(after)} cannot be copied from {list(before)}")
            continue
        shape = constant(model, f"{node.outputs[0].name}_shape", np.array(target, np.int64))
        replace(node, "Reshape", [node.inputs[0], shape])
        changed += 1
    return changed
