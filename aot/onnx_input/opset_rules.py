"""What changed from opset 7 to 20 other than by allowing more: one function an op, and the table of them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from aot.onnx_input._instead import Instead, given, unread
from aot.onnx_input.opsets import Rule, Unsupported
from aot.passes._edit import array, attribute


def _move(node: ir.Node, name: str, index: int) -> int:
    """The integers of attribute `name` become input `index`; where there are none, the node stays."""
    numbers = attribute(node, name)
    if numbers is None:
        return 0
    node.attributes.pop(name)
    listed = numbers if isinstance(numbers, (list, tuple)) else [numbers]
    value = Instead(node).ints(*listed)
    node.resize_inputs(max(index + 1, len(node.inputs)))
    node.replace_input_with(index, value)
    return 1


def batch_normalization(node: ir.Node, opset: int) -> int:
    """Before 9, `spatial=0` keeps statistics per position: (x - mean) / sqrt(var + eps) * scale + bias, written out.

    Before 14, outputs beyond the first were for training.
    """
    if any(not unread(out) for out in node.outputs[1:]):
        raise Unsupported("its running statistics are read, as in training")
    if attribute(node, "spatial", 1) == 0:
        x, scale, bias, mean, var = node.inputs
        put = Instead(node)
        eps = put.scalar_like(scale, attribute(node, "epsilon", 1e-5))
        deviation = put.op("Sqrt", [put.op("Add", [var, eps])])
        normal = put.op("Div", [put.op("Sub", [x, mean]), deviation])
        return put.done(put.op("Add", [put.op("Mul", [normal, scale]), bias]))
    node.attributes.pop("spatial", None)
    if len(node.outputs) > 1:
        node.resize_outputs(1)
    return 1


def dropout(node: ir.Node, opset: int) -> int:
    """Before 12 the ratio is an attribute, and a Dropout is the identity: training was never stored in a file."""
    put = Instead(node)
    mask = node.outputs[1] if len(node.outputs) > 1 else None
    true = None
    if mask is not None and not unread(mask):
        ones = ir.tensor(np.array([True]))
        true = put.op("ConstantOfShape", [put.op("Shape", [node.inputs[0]])], {"value": ones})
        if mask.dtype is not None and mask.dtype != ir.DataType.BOOL:
            true = put.op("Cast", [true], {"to": int(mask.dtype)})
    return put.done(put.op("Identity", [node.inputs[0]]), *([true] if mask is not None else []))


def clip(node: ir.Node, opset: int) -> int:
    """Before 11 the bounds are attributes."""
    low, high = attribute(node, "min"), attribute(node, "max")
    put = Instead(node)
    bounds = [None if bound is None else put.scalar_like(node.inputs[0], bound) for bound in (low, high)]
    while bounds and bounds[-1] is None:
        bounds.pop()
    return put.done(put.op("Clip", [node.inputs[0], *bounds]))


def pad(node: ir.Node, opset: int) -> int:
    """Before 11 the widths and the value are attributes."""
    value = attribute(node, "value", 0.0)
    put = Instead(node)
    inputs = [node.inputs[0], put.ints(*attribute(node, "pads", []))]
    if value:
        inputs.append(put.scalar_like(node.inputs[0], value))
    return put.done(put.op("Pad", inputs, {"mode": attribute(node, "mode")}))


def slice_(node: ir.Node, opset: int) -> int:
    """Before 10 starts, ends and axes are attributes."""
    starts, ends, axes = (attribute(node, name) for name in ("starts", "ends", "axes"))
    put = Instead(node)
    inputs = [node.inputs[0], put.ints(*starts), put.ints(*ends)]
    return put.done(put.op("Slice", [*inputs, put.ints(*(axes or range(len(starts))))]))


def top_k(node: ir.Node, opset: int) -> int:
    """Before 10 k is an attribute."""
    return _move(node, "k", 1)


def upsample(node: ir.Node, opset: int) -> int:
    """Upsample (attribute `scales` in 7, input in 9, gone in 10) is a Resize whose coordinates are asymmetric."""
    scales = attribute(node, "scales")
    put = Instead(node)
    factors = given(node, 1) if scales is None else put.constant(np.array(scales, np.float32))
    return put.done(_resized(put, node.inputs[0], factors, attribute(node, "mode", "nearest")))


def resize(node: ir.Node, opset: int) -> int:
    """Resize-10 has asymmetric coordinates; nearest rounds down, and up where a size shrinks, as onnxruntime does."""
    if len(node.inputs) > 2:  # made of an Upsample
        return 0
    factors = given(node, 1)
    known = array(factors)
    rounding = "ceil" if known is not None and known.size and known.min() < 1 else "floor"
    put = Instead(node)
    return put.done(_resized(put, node.inputs[0], factors, attribute(node, "mode", "nearest"), rounding))


def _resized(
    put: Instead, x: ir.Value | None, factors: ir.Value | None, mode: str, rounding: str = "floor"
) -> ir.Value:
    # "bilinear" and "trilinear" were names for "linear" in old files.
    mode = "linear" if mode in ("bilinear", "trilinear") else mode
    how = {"mode": mode, "coordinate_transformation_mode": "asymmetric"}
    if mode == "nearest":
        how["nearest_mode"] = rounding
    return put.op("Resize", [x, None, factors], how)


def scatter(node: ir.Node, opset: int) -> int:
    """Scatter was renamed."""
    put = Instead(node)
    return put.done(put.op("ScatterElements", node.inputs, {"axis": attribute(node, "axis", 0)}))


def softmax(node: ir.Node, opset: int) -> int:
    """Before 13 Softmax, LogSoftmax and Hardmax work on the tensor flattened to 2-D at `axis` (default 1).

    At the last axis that is what they do since; elsewhere the flattening is written out. An input of rank 1 is one
    row at axis 0 and one column at axis 1.
    """
    axis, x = attribute(node, "axis", 1), node.inputs[0]
    assert x is not None
    rank = None if x.shape is None else len(x.shape)
    put = Instead(node)
    if axis == -1 or (rank is not None and axis == rank - 1):
        return put.done(put.op(node.op_type, [x], {"axis": -1}))
    flat = put.op(node.op_type, [put.op("Flatten", [x], {"axis": axis})], {"axis": -1})
    return put.done(put.op("Reshape", [flat, put.op("Shape", [x])]))


def axes_to_input(node: ir.Node, opset: int) -> int:
    """The attribute `axes` becomes the second input (Squeeze, Unsqueeze, ReduceSum in 13, other reductions in 18)."""
    return _move(node, "axes", 1)


def split(node: ir.Node, opset: int) -> int:
    """In 13 the sizes become an input; from 18 on, equal parts must say how many they are."""
    if attribute(node, "split") is not None:
        return _move(node, "split", 1)
    return 0


def equal_split(node: ir.Node, opset: int) -> int:
    """See `split`."""
    if given(node, 1) is None and attribute(node, "num_outputs") is None:
        node.attributes["num_outputs"] = ir.AttrInt64("num_outputs", len(node.outputs))
        return 1
    return 0


def roi_align(node: ir.Node, opset: int) -> int:
    """Before 16 there was no half-pixel shift."""
    node.attributes["coordinate_transformation_mode"] = ir.AttrString(
        "coordinate_transformation_mode", "output_half_pixel"
    )
    return 1


def grid_sample(node: ir.Node, opset: int) -> int:
    """In 20 bilinear and bicubic were renamed."""
    renamed = {"bilinear": "linear", "bicubic": "cubic"}
    mode = attribute(node, "mode", "bilinear")
    node.attributes["mode"] = ir.AttrString("mode", renamed.get(mode, mode))
    return 1


def dft(node: ir.Node, opset: int) -> int:
    """In 20 the axis becomes an input, by default the last but one instead of 1."""
    axis = attribute(node, "axis", 1)
    node.attributes.pop("axis", None)
    value = Instead(node).constant(np.array(axis, np.int64))
    node.resize_inputs(3)
    node.replace_input_with(2, value)
    return 1


def scan(node: ir.Node, opset: int) -> int:
    """Scan-8 has a batch axis and lengths of its own."""
    raise Unsupported("Scan of opset 8 has a batch axis that later ones lack")


REDUCTIONS = (
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSumSquare",
)

RULES = (
    Rule(("Scan",), 8, scan),
    Rule(("Slice",), 9, slice_),
    Rule(("TopK",), 9, top_k),
    Rule(("Upsample",), 9, upsample),
    Rule(("Clip",), 10, clip),
    Rule(("Pad",), 10, pad),
    Rule(("Resize",), 10, resize),
    Rule(("Scatter",), 10, scatter),
    Rule(("Dropout",), 11, dropout),
    Rule(("Softmax", "LogSoftmax", "Hardmax"), 12, softmax),
    Rule(("Squeeze", "Unsqueeze", "ReduceSum"), 12, axes_to_input),
    Rule(("Split",), 12, split),
    Rule(("BatchNormalization",), 13, batch_normalization),
    Rule(("RoiAlign",), 15, roi_align),
    Rule(REDUCTIONS, 17, axes_to_input),
    Rule(("Split",), 17, equal_split),
    Rule(("GridSample",), 19, grid_sample),
    Rule(("DFT",), 19, dft),
)
