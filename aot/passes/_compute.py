"""What a node computes from constants: by numpy for the ops that shape and weight arithmetic is made of, else by the
evaluator of the ONNX project.

Integers divide toward zero and narrow floats are rounded after every node, as onnxruntime does both. What has no
result that all implementations agree on (a division by zero, a float beyond the integers it is cast to) has none here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from aot.passes import _compute_elementwise, _compute_views
from aot.passes._kernel import KERNELS, Array, Unfoldable, room

__all__ = ["Array", "Unfoldable", "compute"]

_OLDEST = 7
"""Before opset 7 elementwise ops broadcast by attributes; no such graph reaches the passes with constants to fold."""

RANDOM = frozenset(
    ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout")
)
# Quantization has to stay visible.
_NEVER = RANDOM | {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "If", "Loop", "Scan", "SequenceMap"}
_SIZED_BY_DATA = frozenset(("NonZero", "Unique", "Compress"))

assert _compute_elementwise
assert _compute_views


def foldable(node: ir.Node) -> bool:
    """Whether a node of this op may be computed beforehand, if all its inputs are constants."""
    return node.domain == "" and node.op_type not in _NEVER


def compute(node: ir.Node, inputs: Sequence[Array | None], opset: int) -> list[Array]:
    """The outputs of `node` for these inputs, `None` being an input that is not given.

    Raises Unfoldable where there is no result that is certain, or one of more than `_kernel.LARGEST` bytes.
    """
    if opset < _OLDEST or not foldable(node):
        raise Unfoldable(f"{node.op_type} is not computed beforehand")
    kernel = KERNELS.get(node.op_type)
    try:
        with np.errstate(all="ignore"):
            found = kernel(node, opset, *inputs) if kernel is not None else _by_reference(node, inputs, opset)
    except (ArithmeticError, AttributeError, LookupError, NotImplementedError, TypeError, ValueError) as error:
        raise Unfoldable(f"{node.op_type} cannot be computed beforehand: {error}") from error
    # Without dims numpy returns numbers, which are no arrays.
    return [np.asarray(one) for one in (found if isinstance(found, list) else [found])]


def _by_reference(node: ir.Node, inputs: Sequence[Array | None], opset: int) -> list[Array]:
    import onnx
    from onnx.reference import ReferenceEvaluator

    if node.op_type == "BatchNormalization" and opset < 15:
        raise Unfoldable("onnx's reference does not compute it as its text says before opset 15")
    for value in node.outputs:
        shape = value.shape
        if shape is not None and shape.is_static() and value.dtype is not None:
            room(shape.numpy(), max(value.dtype.bitwidth // 8, 1))
        elif node.op_type not in _SIZED_BY_DATA:
            raise Unfoldable(f"the size of what {node.op_type} computes is not known")
    given = [(f"i{at}" if value is not None else "") for at, value in enumerate(inputs)]
    made = [f"o{at}" for at in range(len(node.outputs))]
    alone = ir.to_proto(node)
    del alone.input[:], alone.output[:]
    alone.input.extend(given)
    alone.output.extend(made)
    unknown = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [alone],
        "one",
        [
            unknown(name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in zip(given, inputs, strict=True)
            if value is not None
        ],
        [unknown(name, onnx.TensorProto.UNDEFINED, None) for name in made],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    feeds: dict[str, Any] = {name: value for name, value in zip(given, inputs, strict=True) if value is not None}
    found = ReferenceEvaluator(model).run(None, feeds)
    if not all(isinstance(value, np.ndarray | np.generic) for value in found):
        raise Unfoldable(f"{node.op_type} computes no tensor")
    return [np.asarray(value) for value in found]
