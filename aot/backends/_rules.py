"""What a TensorRT backend makes of one node beyond its op type and dtypes: one rule a line of a table.

`LATE` passes the parser and fails in the builder, so it is looked at before every build; each of its rules was seen to
fail with TensorRT-RTX 1.7. `STATED` is what the support matrix of onnx-tensorrt states, and only used where no parser
can be asked. A rule says why it refuses, and nothing where it does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import onnx_ir as ir

Rule = Callable[["ir.Node"], str | None]

MOST_K = 3840
"""TopK's largest k."""

_QUANTIZED = frozenset({"INT8", "FLOAT8E4M3FN", "INT4", "FLOAT4E2M1"})


def late(node: ir.Node, backend: str) -> str | None:
    """Why the builder of that backend fails at a node that its parser takes; None: nothing is known against it."""
    rules = [LATE.get(node.op_type), LATE.get(f"{backend}:{node.op_type}"), _quantized_constant]
    return next((why for rule in rules if rule is not None and (why := rule(node)) is not None), None)


def stated(node: ir.Node) -> str | None:
    """Why the support matrix excludes a node whose op and dtypes it lists; None where it does not."""
    rule = STATED.get(node.op_type)
    return rule(node) if rule is not None else None


def _array(node: ir.Node, index: int) -> np.ndarray | None:
    """The constant at that input; None where it is computed or absent."""
    value = node.inputs[index] if index < len(node.inputs) else None
    tensor = value.const_value if value is not None and not value.is_graph_input() else None
    return None if tensor is None else np.asarray(tensor.numpy())


def _computed(node: ir.Node, index: int) -> bool:
    """Whether something is at that input that is no constant."""
    value = node.inputs[index] if index < len(node.inputs) else None
    return value is not None and (value.const_value is None or value.is_graph_input()) and not _folds(value)


def _folds(value: ir.Value) -> bool:
    """Whether the value is computed from shapes and constants alone, which the builder may fold."""
    return value.producer() is not None


def _integer(node: ir.Node, name: str, default: int) -> int:
    found = node.attributes.get(name)
    return default if found is None else found.as_int()


def _text(node: ir.Node, name: str, default: str) -> str:
    found = node.attributes.get(name)
    return default if found is None else found.as_string()


def _rank(node: ir.Node, index: int = 0) -> int | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    return None if value is None or value.shape is None else value.shape.rank()


def _dtype(node: ir.Node, index: int = 0) -> str | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    return None if value is None or value.dtype is None else value.dtype.name


# What passes the parser.


def _top_k(node: ir.Node) -> str | None:
    k = _array(node, 1)
    return f"k is {int(k.max())}, and {MOST_K} is the most" if k is not None and k.size and k.max() > MOST_K else None


def _attention(node: ir.Node) -> str | None:
    """TensorRT-RTX 1.7 has kernels for narrow floats and heads of 16 elements and more; it takes an Attention apart,
    for which it needs none, only where the inputs have three axes of fixed size."""
    query = node.inputs[0]
    if query is None or query.shape is None or query.dtype is None:
        return None
    if query.shape.rank() == 3 and query.shape.is_static():
        return None
    if query.dtype.name == "FLOAT":
        return "there is no FP32 kernel for the ONNX op Attention"
    size: object = query.shape[-1]
    if query.shape.rank() == 3:
        heads = _integer(node, "q_num_heads", 0)
        size = size // heads if isinstance(size, int) and heads else None
    return f"there is no kernel for heads of {size} elements" if isinstance(size, int) and size < 16 else None


def _branches(node: ir.Node) -> str | None:
    """The two sides of an If whose condition is computed must agree in rank."""
    if node.inputs[0] is not None and node.inputs[0].const_value is not None:
        return None
    sides = [node.attributes[name].as_graph().outputs for name in ("then_branch", "else_branch")]
    for left, right in zip(*sides, strict=True):
        ranks = [None if side.shape is None else side.shape.rank() for side in (left, right)]
        if None not in ranks and ranks[0] != ranks[1]:
            return f"its two sides give results of {ranks[0]} and {ranks[1]} axes, and their ranks must agree"
    return None


def _quantized_constant(node: ir.Node) -> str | None:
    """A constant in a quantized type may only be dequantized."""
    if node.op_type in ("DequantizeLinear", "QuantizeLinear") or node.domain not in ("", "ai.onnx"):
        return None
    for value in node.inputs:
        if value is None or value.const_value is None or value.dtype is None or value.dtype.name not in _QUANTIZED:
            continue
        return f"its input '{value.name}' is a constant of type {value.dtype.name}, which may only be dequantized"
    return None


LATE: Mapping[str, Rule] = {
    "TopK": _top_k,
    "If": _branches,
    "tensorrt_rtx:Attention": _attention,
}
"""Op type, or `backend:op type` -> the rule."""


# What the support matrix states.


def _constant(index: int, what: str) -> Rule:
    return lambda node: f"'{what}' must be a constant" if _computed(node, index) else None


def _ones(*names: str) -> Rule:
    def rule(node: ir.Node) -> str | None:
        for name in names:
            found = node.attributes.get(name)
            if found is not None and any(n != 1 for n in found.as_ints()):
                return f"'{name}' other than 1 is not supported"
        return None

    return rule


def _zero_point(node: ir.Node) -> str | None:
    zero = _array(node, 2)
    return "its zero point must be 0" if zero is not None and np.any(zero.astype(np.float32) != 0) else None


def _one_output(node: ir.Node) -> str | None:
    extra = [value for value in node.outputs[1:] if value.uses() or value.is_graph_output()]
    return "only its first output is supported" if extra else None


def _is(name: str, value: int, what: str) -> Rule:
    return lambda node: None if _integer(node, name, value) == value else what


def _reduction(node: ir.Node) -> str | None:
    return None if _text(node, "reduction", "none") == "none" else "a reduction is not supported"


def _resize(node: ir.Node) -> str | None:
    if _integer(node, "antialias", 0):
        return "antialiasing is not supported"
    if _text(node, "mode", "nearest") not in ("nearest", "linear"):
        return f"mode '{_text(node, 'mode', '')}' is not supported"
    if _text(node, "keep_aspect_ratio_policy", "stretch") != "stretch":
        return "keeping the aspect ratio is not supported"
    how = _text(node, "coordinate_transformation_mode", "half_pixel")
    known = ("half_pixel", "pytorch_half_pixel", "tf_half_pixel_for_nn", "asymmetric", "align_corners")
    return None if how in known else f"coordinate transformation '{how}' is not supported"


def _recurrent(node: ir.Node) -> str | None:
    if _integer(node, "layout", 0):
        return "layout 1 (batch first) is not supported"
    return "input_forget is not supported" if _integer(node, "input_forget", 0) else None


def _any(*rules: Rule) -> Rule:
    return lambda node: next((why for rule in rules if (why := rule(node)) is not None), None)


def _spatial(node: ir.Node) -> str | None:
    rank = _rank(node)
    return None if rank is None or rank in (3, 4, 5) else f"its input has {rank} axes, and 3 to 5 are supported"


_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")

STATED: Mapping[str, Rule] = {
    "AveragePool": _any(_spatial, _ones("dilations")),
    "BatchNormalization": _is("training_mode", 0, "training mode is not supported"),
    "Conv": _spatial,
    "ConvTranspose": _spatial,
    "CumSum": _constant(1, "axis"),
    "DequantizeLinear": _zero_point,
    "GridSample": lambda node: None if _rank(node) in (None, 4) else "only pictures (4 axes) are supported",
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
    "LayerNormalization": _one_output,
    "LpPool": _ones("dilations"),
    "MaxPool": _any(_spatial, _ones("dilations"), _one_output),
    "OneHot": _constant(1, "depth"),
    "Pad": _constant(3, "axes"),
    "QuantizeLinear": _zero_point,
    "Resize": _resize,
    "ScatterND": _reduction,
    "Slice": _constant(3, "axes"),
    "Squeeze": _constant(1, "axes"),
    "TopK": _is("sorted", 1, "unsorted results are not supported"),
    "Unsqueeze": _constant(1, "axes"),
    **{f"Reduce{name}": _constant(1, "axes") for name in _REDUCTIONS},
}
"""Op type -> the rule."""
