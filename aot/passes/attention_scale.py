"""The scale of dot-product attention, when it was applied half to the queries and half to the keys."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import constant, dims, made_by, nodes, only_user, scalar


def _scaled(value: ir.Value | None) -> tuple[ir.Node, int, float] | None:
    """(Mul, position of its tensor, factor) where `value` is a tensor times a constant number, read only once."""
    mul = made_by(value, "Mul")
    if mul is None or value is None or only_user(value) is None:
        return None
    for tensor, factor in ((0, 1), (1, 0)):
        number, shape = scalar(mul.inputs[factor]), dims(mul.inputs[factor])
        # A factor of higher rank than the tensor would raise the rank of the product.
        if number is not None and shape is not None and len(shape) <= 1 and scalar(mul.inputs[tensor]) is None:
            return mul, tensor, number
    return None


@graph_pass(
    anchors=("MatMul",),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,S,4] q, float[B,4,S] k) => (float[B,S,S] y) <float r = {0.7}>
    { a = Mul(q, r)  b = Mul(k, r)  y = MatMul(a, b) }
    """,
)
def attention_scale(model: ir.Model, skip: Skip) -> int:
    """(a·q)(b·k) = (ab·q)k for numbers a and b: one multiplication less, and the keys stay as they are.

    TensorRT fuses attention, in FP8 too, when the scale is on one side.
    """
    changed = 0
    for node in nodes(model, "MatMul"):
        left, right = _scaled(node.inputs[0]), _scaled(node.inputs[1])
        if left is None or right is None:
            continue
        mul, at, a = left
        other, kept, b = right
        factor = mul.inputs[1 - at]
        assert factor is not None
        assert factor.dtype is not None
        product = constant(model, f"{mul.outputs[0].name}_scale", np.array(a * b, factor.dtype.numpy()))
        mul.replace_input_with(1 - at, product)
        node.replace_input_with(1, other.inputs[kept])
        changed += 1
    return changed
