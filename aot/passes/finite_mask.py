"""Additive attention masks that leave the range of FP16."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import array, attribute, constant, made_by, nodes

Array = np.ndarray[Any, Any]

FARTHEST = 32768.0

# Ops whose output holds values of their inputs, or a sum or product of few of them.
_PASS_ON = (
    *(
        "Add",
        "Sub",
        "Neg",
        "Mul",
        "Where",
        "Max",
        "Min",
        "Clip",
        "Cast",
        "Identity",
        "Trilu",
        "Pad",
        "Concat",
        "Expand",
    ),
    *("Tile", "Unsqueeze", "Squeeze", "Reshape", "Flatten", "Slice", "Split", "Transpose", "Gather", "GatherND"),
    *("GatherElements", "ScatterND", "ScatterElements", "ConstantOfShape"),
)


@graph_pass(
    narrow_only=True,
    anchors=("Softmax",),
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
    score of -16 is added). So it is with (1 - mask) · -1e9 and (mask - 1) · 1e9, which in FP16 are 0 · inf, NaN, where
    nothing is masked: there the factor becomes ±32768, if nothing but a mask is multiplied with it.

    Rows that are masked throughout are the exception: there the softmax is over equal numbers (or NaN, which
    scaled_dot_product_attention turns into 0) before, and over s rounded to a multiple of 16 (FP16) after. Such
    rows belong to padding queries, whose results nothing reads. FP32 builds keep the mask as it is.
    """
    changed = 0
    seen: set[ir.Value] = set()
    stack = [value for node in nodes(model, "Softmax") for value in node.inputs]
    while stack:
        value = stack.pop()
        if value is None or value in seen or (value.dtype is not None and not value.dtype.is_floating_point()):
            continue
        seen.add(value)
        node = made_by(value, *_PASS_ON)
        if node is None:
            continue
        if value.is_graph_output():
            skip(node, "its result is an output of the graph, which must keep its numbers")
            continue
        if node.op_type == "ConstantOfShape":
            changed += _filled(node)
            continue
        for index, operand in enumerate(node.inputs):
            finite = _within(array(operand))
            if operand is None or finite is None:
                stack.append(operand)
            elif node.op_type == "Mul" and not _is_mask(node.inputs[1 - index]):
                skip(node, "a constant beyond FP16 is multiplied with more than a mask")
            else:
                node.replace_input_with(index, constant(model, f"{operand.name}_finite", finite))
                changed += 1
    return changed


def _within(data: Array | None) -> Array | None:
    """The numbers brought within ±32768; None where they are no floats, or within already."""
    if data is None or data.dtype.kind != "f" or not (abs(data) > FARTHEST).any():
        return None
    return np.clip(data, -FARTHEST, FARTHEST).astype(data.dtype)


def _filled(node: ir.Node) -> int:
    fill = attribute(node, "value")
    finite = _within(fill.numpy()) if fill is not None else None
    if finite is None:
        return 0
    node.attributes["value"] = ir.AttrTensor("value", ir.tensor(finite))
    return 1


def _is_mask(value: ir.Value | None) -> bool:
    """Whether it is made of constants, integers, truth values and inputs of the graph alone."""
    stack, seen = [value], set[ir.Value]()
    while stack:
        one = stack.pop()
        if one is None or one in seen or one.is_graph_input() or (one.dtype and not one.dtype.is_floating_point()):
            continue
        seen.add(one)
        if ir.convenience.get_const_tensor(one) is not None:
            continue
        node = made_by(one, *_PASS_ON)
        if node is None:
            return False
        stack += node.inputs
    return True
