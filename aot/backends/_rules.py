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
    rules = [LATE.get(node.op_type), LATE.get(f"{backend}:{node.op_type}"), _quantized]
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


def _given(node: ir.Node, index: int) -> bool:
    """Whether the caller decides that input: it is neither a constant nor computed, which a builder may fold."""
    value = node.inputs[index] if index < len(node.inputs) else None
    return value is not None and value.is_graph_input()


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
    """TensorRT-RTX 1.7 has kernels for narrow floats and heads of 16 elements and more. It does without, by taking the
    op apart, only for a query of fixed size that has three axes or is one token long."""
    query = node.inputs[0]
    if query is None or query.shape is None or query.dtype is None:
        return None
    rank, size = query.shape.rank(), query.shape[-1]
    if query.shape.is_static() and (rank == 3 or query.shape[-2] == 1):
        return None
    if query.dtype.name == "FLOAT":
        return "there is no FP32 kernel for the ONNX op Attention"
    heads = _integer(node, "q_num_heads", 1) if rank == 3 else 1
    if isinstance(size, int) and size < 16 * heads:
        return f"there is no kernel for heads of {size // heads} elements, fewer than 16"
    return None


def _no_kernel(node: ir.Node) -> str | None:
    return "there is no kernel for it"


def _branches(node: ir.Node) -> str | None:
    """The two sides of an If whose condition is computed must agree in rank."""
    from aot.onnx_input.branches import UNDECIDED

    if node.inputs[0] is not None and node.inputs[0].const_value is not None:
        return None
    sides = [node.attributes[name].as_graph().outputs for name in ("then_branch", "else_branch")]
    for left, right in zip(*sides, strict=True):
        ranks = [None if side.shape is None else side.shape.rank() for side in (left, right)]
        if None not in ranks and ranks[0] != ranks[1]:
            why = node.metadata_props.get(UNDECIDED)
            said = f"its two sides give results of {ranks[0]} and {ranks[1]} axes, and their ranks must agree"
            return f"{said}; {why}" if why else said
    return None


def _quantized(node: ir.Node) -> str | None:
    """Quantized types are there for quantization: constants and inputs of them are dequantized, outputs quantized.
    INT8 inputs and outputs are taken, and so is Clip, whose bounds become numbers."""
    if node.op_type in ("DequantizeLinear", "QuantizeLinear", "Clip") or node.domain not in ("", "ai.onnx"):
        return None
    for value in node.inputs:
        dtype = value.dtype.name if value is not None and value.dtype is not None else ""
        if value is None or dtype not in _QUANTIZED:
            continue
        if value.const_value is not None:
            return f"its input '{value.name}' is a constant of type {dtype}, which may only be dequantized"
        if dtype != "INT8" and value.is_graph_input():
            return f"its input '{value.name}' is of type {dtype}, which may only be dequantized"
    for value in node.outputs:
        dtype = value.dtype.name if value.dtype is not None else ""
        if dtype in _QUANTIZED - {"INT8"} and value.is_graph_output():
            return f"the output '{value.name}' is of type {dtype}, which only QuantizeLinear may make"
    return None


LATE: Mapping[str, Rule] = {
    "TopK": _top_k,
    "If": _branches,
    "tensorrt_rtx:Attention": _attention,
    "tensorrt_rtx:NonMaxSuppression": _no_kernel,
}
"""Op type, or `backend:op type` -> the rule."""


# What the support matrix states.


def _constant(index: int, what: str) -> Rule:
    return lambda node: f"'{what}' must be a constant" if _given(node, index) else None


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
    if _text(node, "keep_aspect_ratio_policy", "stretch") != "stretch":
        return "keeping the aspect ratio is not supported"
    how = _text(node, "coordinate_transformation_mode", "half_pixel")
    known = ("half_pixel", "pytorch_half_pixel", "tf_half_pixel_for_nn", "asymmetric", "align_corners")
    return None if how in known else f"coordinate transformation '{how}' is not supported"


def _modulo(node: ir.Node) -> str | None:
    wrong = _dtype(node) in ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE") and not _integer(node, "fmod", 0)
    return "floats need fmod=1" if wrong else None


def _training(node: ir.Node) -> str | None:
    mode = _array(node, 2)
    return "training mode is not supported" if mode is not None and mode.any() else None


def _plain_attention(node: ir.Node) -> str | None:
    if len([value for value in node.outputs if value.name]) > 1:
        return "only its first output is supported"
    found = node.attributes.get("softcap")
    return "softcap is not supported" if found is not None and found.as_float() else None


def _norm(node: ir.Node) -> str | None:
    return None if _integer(node, "p", 2) in (1, 2) else "only p of 1 and 2 are supported"


def _range(node: ir.Node) -> str | None:
    dtype = _dtype(node)
    return f"it does not take {dtype}" if dtype in ("FLOAT16", "BFLOAT16") else None


def _any(*rules: Rule) -> Rule:
    return lambda node: next((why for rule in rules if (why := rule(node)) is not None), None)


def _spatial(node: ir.Node) -> str | None:
    rank = _rank(node)
    return None if rank is None or rank in (3, 4, 5) else f"its input has {rank} axes, and 3 to 5 are supported"


_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")

STATED: Mapping[str, Rule] = {
    "Attention": _plain_attention,
    "AveragePool": _any(_spatial, _ones("dilations")),
    "BatchNormalization": _is("training_mode", 0, "training mode is not supported"),
    "Conv": _spatial,
    "ConvTranspose": _spatial,
    "DequantizeLinear": _zero_point,
    "LSTM": _is("input_forget", 0, "input_forget is not supported"),
    "Dropout": _training,
    "LayerNormalization": _one_output,
    "LpPool": _any(_ones("dilations"), _norm),
    "MaxPool": _any(_spatial, _ones("dilations"), _one_output),
    "Mod": _modulo,
    "OneHot": _constant(1, "depth"),
    "QuantizeLinear": _zero_point,
    "Range": _range,
    "Resize": _resize,
    "ScatterND": _reduction,
    "Squeeze": _constant(1, "axes"),
    "TopK": _is("sorted", 1, "unsorted results are not supported"),
    "Unsqueeze": _constant(1, "axes"),
    **{f"Reduce{name}": _constant(1, "axes") for name in _REDUCTIONS},
}
"""Op type -> the rule."""
