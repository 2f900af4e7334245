"""Integer ops of onnxruntime's own domain as DequantizeLinear, the op in float, QuantizeLinear."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from aot.onnx_input._instead import Instead, given
from aot.passes._edit import attribute


def _dequantized(put: Instead, *parts: ir.Value | None, axis: int | None = None) -> ir.Value:
    """DequantizeLinear of (x, scale, zero point); the last may be None."""
    return put.op("DequantizeLinear", [part for part in parts if part is not None], {"axis": axis})


def _quantized(put: Instead, x: ir.Value, scale: ir.Value | None, zero: ir.Value | None) -> ir.Value:
    return put.op("QuantizeLinear", [x, scale, *([zero] if zero is not None else [])])


def between(op: str, kept: tuple[str, ...] = ()) -> Callable[[ir.Node], int]:
    """A rewrite of (x, x scale, x zero, y scale, y zero) into Q(op(DQ(x)))."""

    def rewrite(node: ir.Node) -> int:
        put = Instead(node)
        x, scale, zero, out_scale, out_zero = (given(node, index) for index in range(5))
        made = put.op(op, [_dequantized(put, x, scale, zero)], {name: attribute(node, name) for name in kept})
        return put.done(_quantized(put, made, out_scale, out_zero))

    return rewrite


def of_two(op: str) -> Callable[[ir.Node], int]:
    """A rewrite of (a, a scale, a zero, b, b scale, b zero, y scale, y zero) into Q(op(DQ(a), DQ(b)))."""

    def rewrite(node: ir.Node) -> int:
        put = Instead(node)
        a, b = (_dequantized(put, *(given(node, index + i) for i in range(3))) for index in (0, 3))
        return put.done(_quantized(put, put.op(op, [a, b]), given(node, 6), given(node, 7)))

    return rewrite


def q_linear_softmax(node: ir.Node) -> int:
    """Q(Softmax(DQ(x))); before opset 13 the input is flattened at `axis`."""
    from aot.onnx_input.microsoft import Untaken

    axis = attribute(node, "axis", -1)
    x = node.inputs[0]
    last = axis == -1 or (x is not None and x.shape is not None and axis == len(x.shape) - 1)
    if attribute(node, "opset", 13) < 13 and not last:
        raise Untaken("a softmax flattened at an axis before the last")
    put = Instead(node)
    made = put.op("Softmax", [_dequantized(put, x, given(node, 1), given(node, 2))], {"axis": axis})
    return put.done(_quantized(put, made, given(node, 3), given(node, 4)))


def q_linear_average_pool(node: ir.Node) -> int:
    """Q(AveragePool(DQ(x)))."""
    _only_channels_first(node)
    return between("AveragePool", ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides"))(
        node
    )


def q_linear_global_average_pool(node: ir.Node) -> int:
    """Q(GlobalAveragePool(DQ(x)))."""
    _only_channels_first(node)
    return between("GlobalAveragePool")(node)


def _only_channels_first(node: ir.Node) -> None:
    from aot.onnx_input.microsoft import Untaken

    if attribute(node, "channels_last", 0):
        raise Untaken("channels last")


def q_linear_concat(node: ir.Node) -> int:
    """Q(Concat(DQ(each))) of (y scale, y zero, then x, scale, zero of each)."""
    put = Instead(node)
    parts = [_dequantized(put, *node.inputs[i : i + 3]) for i in range(2, len(node.inputs), 3)]
    made = put.op("Concat", parts, {"axis": attribute(node, "axis")})
    return put.done(_quantized(put, made, node.inputs[0], node.inputs[1]))


def q_linear_reduce_mean(node: ir.Node) -> int:
    """Q(ReduceMean(DQ(x)))."""
    put = Instead(node)
    x, scale, zero, out_scale, out_zero = (given(node, index) for index in range(5))
    axes = attribute(node, "axes")
    inputs = [_dequantized(put, x, scale, zero), *([put.ints(*axes)] if axes else [])]
    made = put.op("ReduceMean", inputs, {"keepdims": attribute(node, "keepdims", 1)})
    return put.done(_quantized(put, made, out_scale, out_zero))


def q_gemm(node: ir.Node) -> int:
    """Q(Gemm(DQ(a), DQ(b), c * alpha * a scale * b scale)); without y scale the sum stays float."""
    put = Instead(node)
    a = _dequantized(put, *node.inputs[0:3])
    transposed = attribute(node, "transB", 0)
    b = _dequantized(put, *node.inputs[3:6], axis=0 if transposed else 1)
    alpha = attribute(node, "alpha", 1.0)
    c = given(node, 6)
    bias = None
    if c is not None:
        step = put.op("Mul", [node.inputs[1], node.inputs[4]])
        wide = put.op("Cast", [c], {"to": int(ir.DataType.FLOAT)})
        bias = put.op("Mul", [wide, put.op("Mul", [step, put.scalar_like(None, alpha)])])
    kept = {"alpha": alpha, "transA": attribute(node, "transA"), "transB": attribute(node, "transB")}
    made = put.op("Gemm", [a, b, *([bias] if bias is not None else [])], kept)
    scale = given(node, 7)
    return put.done(made if scale is None else _quantized(put, made, scale, given(node, 8)))


def dynamic_quantize_mat_mul(node: ir.Node) -> int:
    """A @ DQ(B) + bias: A was quantized by its own range at every call, which a float product need not do."""
    put = Instead(node)
    b = _dequantized(put, given(node, 1), given(node, 2), given(node, 3), axis=1)
    return put.done(_biased(put, put.op("MatMul", [node.inputs[0], b]), given(node, 4)))


def mat_mul_integer_to_float(node: ir.Node) -> int:
    """DQ(A) @ DQ(B) + bias."""
    put = Instead(node)
    a = _dequantized(put, given(node, 0), given(node, 2), given(node, 4))
    b = _dequantized(put, given(node, 1), given(node, 3), given(node, 5), axis=1)
    return put.done(_biased(put, put.op("MatMul", [a, b]), given(node, 6)))


def _biased(put: Instead, made: ir.Value, bias: ir.Value | None) -> ir.Value:
    return made if bias is None else put.op("Add", [made, bias])


def renamed(node: ir.Node) -> int:
    """QuantizeLinear and DequantizeLinear of com.microsoft are those of ONNX, earlier and with more types."""
    node.domain = ""
    return 1


INTEGERS: dict[str, Callable[[ir.Node], int]] = {
    "QLinearAdd": of_two("Add"),
    "QLinearMul": of_two("Mul"),
    "QLinearSigmoid": between("Sigmoid"),
    "QLinearLeakyRelu": between("LeakyRelu", ("alpha",)),
    "QLinearSoftmax": q_linear_softmax,
    "QLinearAveragePool": q_linear_average_pool,
    "QLinearGlobalAveragePool": q_linear_global_average_pool,
    "QLinearConcat": q_linear_concat,
    "QLinearReduceMean": q_linear_reduce_mean,
    "QGemm": q_gemm,
    "DynamicQuantizeMatMul": dynamic_quantize_mat_mul,
    "MatMulIntegerToFloat": mat_mul_integer_to_float,
    "QuantizeLinear": renamed,
    "DequantizeLinear": renamed,
}
