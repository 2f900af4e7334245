"""Casts to and from quantized dtypes as what they are, QuantizeLinear and DequantizeLinear.

A model writes `(x / scale).clamp(-448, 448).to(torch.float8_e4m3fn)` and `y.to(torch.float32) * scale`. TensorRT has no
cast from or to FP8 («Tensor has datatype FP8 but is not produced by IQuantizeLayer»), and takes the scale into a matrix
product only from a DequantizeLinear. A cast of FP8 alone is one with scale 1. Nothing changes by it: ONNX defines both
ops by these very steps.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

FP8, INT8 = ir.DataType.FLOAT8E4M3FN, ir.DataType.INT8
FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
LIMITS = {FP8: [-448.0, 448.0], INT8: [-128.0, 127.0]}
"""What QuantizeLinear saturates to."""


def write_quantization(model: ir.Model) -> None:
    """Replace casts of a model that torch.onnx has written; every value that it casts has a dtype."""
    for node in list(model.graph.all_nodes()):
        if node.op_type != "Cast" or node.domain or node.graph is None:
            continue
        source, result = node.inputs[0], node.outputs[0]
        assert source is not None
        if source.const_value is not None:
            continue  # a constant, which is folded
        if source.dtype in FLOATS and result.dtype in LIMITS:
            _quantize(model, node, source)
        elif source.dtype in LIMITS and result.dtype in FLOATS:
            _dequantize(model, node, source)


def _quantize(model: ir.Model, cast: ir.Node, source: ir.Value) -> None:
    """Cast, with what QuantizeLinear does in front of it: Div by a number, Round in INT8, Clip to the limits."""
    narrow = cast.outputs[0].dtype
    assert narrow is not None
    assert source.dtype is not None
    passed = []
    value, scale = source, 1.0
    if clip := clipping(value, narrow):
        passed.append(clip)
        value = _first(clip)
    if narrow == INT8:
        rounding = _made_by(value, "Round")
        if not passed or rounding is None:
            return  # a cast to INT8 alone wraps around
        passed.append(rounding)
        value = _first(rounding)
    if (divided := _made_by(value, "Div")) and (number := _number(divided.inputs[1])):
        passed.append(divided)
        value, scale = _first(divided), number
    _put(model, "QuantizeLinear", value, scale, source.dtype, narrow, cast)
    for node in passed:
        drop_unused(node)


def clipping(value: ir.Value, narrow: ir.DataType) -> ir.Node | None:
    """The Clip that makes a value, where it does what QuantizeLinear to this dtype does by itself.

    onnxruntime 1.32 cannot load a model in which such a Clip stands before a QuantizeLinear to FP8.
    """
    clip = _made_by(value, "Clip")
    return clip if clip and [_number(bound) for bound in clip.inputs[1:]] == LIMITS[narrow] else None


def drop_unused(node: ir.Node) -> None:
    """Remove a node whose result nothing reads."""
    if not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
        assert node.graph is not None
        node.graph.remove(node, safe=True)


def _made_by(value: ir.Value, op: str) -> ir.Node | None:
    node = value.producer()
    return node if node is not None and node.op_type == op and not node.domain else None


def _first(node: ir.Node) -> ir.Value:
    value = node.inputs[0]
    assert value is not None
    return value


def _dequantize(model: ir.Model, cast: ir.Node, source: ir.Value) -> None:
    """Cast, with a Mul by a number behind, as one DequantizeLinear."""
    result = cast.outputs[0]
    uses = list(result.uses())
    replaced, scale = cast, 1.0
    if len(uses) == 1 and uses[0].node.op_type == "Mul" and not result.is_graph_output():
        number = _number(uses[0].node.inputs[1 - uses[0].idx])
        if number:
            replaced, scale = uses[0].node, number
    assert source.dtype is not None
    if replaced is not cast or source.dtype == FP8:
        assert result.dtype is not None
        _put(model, "DequantizeLinear", source, scale, result.dtype, source.dtype, replaced)
        if replaced is not cast:
            assert cast.graph is not None
            cast.graph.remove(cast, safe=True)


def _number(value: ir.Value | None) -> float | None:
    """A constant of one element, None for anything else."""
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    return float(tensor.numpy().item()) if tensor is not None and tensor.size == 1 and not len(tensor.shape) else None


def _put(
    model: ir.Model, op: str, value: ir.Value, scale: float, wide: ir.DataType, narrow: ir.DataType, old: ir.Node
) -> None:
    result = old.outputs[0]
    constants = []
    for what, number, dtype in (
        ("scale", np.asarray(scale, wide.numpy()), wide),
        ("zero", np.zeros((), narrow.numpy()), narrow),
    ):
        tensor = ir.tensor(number, dtype=dtype, name=f"{result.name}_{what}")
        constant = ir.Value(name=tensor.name, shape=ir.Shape(()), type=ir.TensorType(dtype), const_value=tensor)
        model.graph.register_initializer(constant)
        constants.append(constant)
    new = ir.node(op, [value, *constants], outputs=[ir.Value(shape=result.shape, type=result.type)])
    assert old.graph is not None
    ir.convenience.replace_nodes_and_values(old.graph, old, [old], [new], [result], new.outputs)
