"""Additive attention masks that leave the range of FP16."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import array, constant, made_by, nodes

LOWEST = -32768.0

# Ops whose output holds values of their inputs, or a sum or product of few of them.
_PASS_ON = ("Add", "Mul", "Where", "Unsqueeze", "Squeeze", "Reshape", "Expand", "Slice", "Transpose", "Cast", "Concat")


@graph_pass(
    narrow_only=True,
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,S,S] scores, bool[B,1,S] keep) => (float[B,S,S] y) <float zero = {0}, float low = {-3.4028235e38}>
    { m = Where(keep, zero, low)  a = Add(scores, m)  y = Softmax(a) }
    """,
)
def finite_mask(model: ir.Model, skip: Skip) -> int:
    """softmax(s + m) with m = -inf or the lowest FP32 number where masked = softmax(s + m') with m' = -32768 there.

    exp(s - 32768 - max) is exactly 0 in every type as long as scores stay within ±16000, and -32768 is a number of
    FP16 and BF16, while the lowest FP32 number turns into -inf in both (and -65504, the lowest of FP16, does once a
    score of -16 is added).

    Rows that are masked throughout are the exception: there the softmax is over equal numbers (or NaN, which
    scaled_dot_product_attention turns into 0) before, and over s rounded to a multiple of 16 (FP16) after. Such
    rows belong to padding queries, whose results nothing reads. FP32 builds keep the mask as it is.
    """
    changed = 0
    seen: set[ir.Value] = set()
    stack = [value for node in nodes(model, "Softmax") for value in node.inputs]
    while stack:
        value = stack.pop()
        if value is None or value in seen:
            continue
        seen.add(value)
        node = made_by(value, *_PASS_ON)
        if node is None:
            continue
        if value.is_graph_output():
            skip(node, "its result is an output of the graph, which must keep its numbers")
            continue
        for index, operand in enumerate(node.inputs):
            data = array(operand)
            if operand is None or data is None or data.dtype.kind != "f" or not (data < LOWEST).any():
                stack.append(operand)
                continue
            finite = np.maximum(data, np.asarray(LOWEST, data.dtype))
            node.replace_input_with(index, constant(model, f"{operand.name}_finite", finite))
            changed += 1
    return changed
