"""The replacement of NaN by 0 behind a softmax."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import array, bypass, made_by, nodes, scalar

# Layers: finite whenever the model works, which calibration checks on real data.
_LAYERS = ("MatMul", "Gemm", "Conv", "Softmax", "LayerNormalization", "Gelu", "Relu", "Tanh", "Sigmoid", "Erf", "Clip")
# Finite inputs give a finite output.
_KEEPS_FINITE = (
    *("Add", "Sub", "Mul", "Neg", "Max", "Min", "Where", "Unsqueeze", "Squeeze", "Reshape", "Expand", "Slice"),
    *("Transpose", "Concat", "Gather", "Identity"),
)


def _finite(value: ir.Value | None) -> bool:
    """Whether `value` is known to hold no infinity and no NaN."""
    if value is None or (value.dtype is not None and not value.dtype.is_floating_point()):
        return True
    data = array(value)
    if data is not None:
        return bool(np.isfinite(data.astype(np.float32)).all())
    if made_by(value, *_LAYERS):
        return True
    cast = made_by(value, "Cast")
    if cast is not None:
        source = cast.inputs[0]
        return source is not None and source.dtype is not None and not source.dtype.is_floating_point()
    node = made_by(value, *_KEEPS_FINITE)
    return node is not None and all(map(_finite, node.inputs))


@graph_pass(
    anchors=("IsNaN",),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,S,4] q, float[B,4,S] k, bool[B,1,S] keep) => (float[B,S,S] y) <float zero = {0}, float low = {-30000}>
    { m = Where(keep, zero, low)  s = MatMul(q, k)  a = Add(s, m)  p = Softmax(a)
      n = IsNaN(p)  y = Where(n, zero, p) }
    """,
)
def softmax_guard(model: ir.Model, skip: Skip) -> int:
    """Where(IsNaN(p), 0, p) = p for p = Softmax(a), if a holds no infinity and no NaN.

    A softmax is NaN where a row of its input is -inf throughout (or holds NaN or +inf); the guard is there for rows
    that are masked with -inf. A mask of finite numbers leaves nothing to guard against, and matrix products of a
    working model are finite. Where the mask may hold -inf the guard stays.
    """
    changed = 0
    for where in nodes(model, "Where"):
        test = made_by(where.inputs[0], "IsNaN")
        softmax = made_by(test.inputs[0], "Softmax") if test is not None else None
        if softmax is None or scalar(where.inputs[1]) != 0 or where.inputs[2] is not softmax.outputs[0]:
            continue
        if not _finite(softmax.inputs[0]):
            skip(where, "what is added to the scores may hold -inf, so a row may be NaN")
            continue
        bypass(where, softmax.outputs[0])
        changed += 1
    return changed
