"""Ops of onnxruntime's own domain, com.microsoft, as ops of ONNX: what its optimizer fuses, written out again.

Their meaning is that of onnxruntime's ContribOperators.md. What is not in `REWRITES` stays and is refused by the
backends that lack it, by node and domain.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from aot.onnx_input._instead import Instead, given, unread
from aot.onnx_input.validity import STANDARD
from aot.passes._edit import array, attribute

DOMAIN = "com.microsoft"


class Untaken(Exception):
    """A variant of the op that is not written out; the message says which."""


def rewrite(model: ir.Model) -> list[str]:
    """Write the known ops of com.microsoft out, in place; returns a sentence for each variant that was left."""
    from aot.onnx_input.microsoft_attention import ATTENTION
    from aot.onnx_input.microsoft_integers import INTEGERS

    table: dict[str, Rewrite] = {**REWRITES, **ATTENTION, **INTEGERS}
    left: list[str] = []
    for node in tuple(model.graph.all_nodes()):
        ours = node.domain == DOMAIN or (node.domain == "" and node.op_type in STANDARD)
        if node.graph is None or not ours or node.op_type not in table:
            continue
        try:
            table[node.op_type](node)
        except Untaken as error:
            left.append(f"node '{node.name}' ({DOMAIN}::{node.op_type}) is not written out: {error}")
    if not any(node.domain == DOMAIN for node in model.graph.all_nodes()):
        model.graph.opset_imports.pop(DOMAIN, None)
    return left


Rewrite = Callable[[ir.Node], int]


def activated(put: Instead, x: ir.Value, name: str | None, params: list[float]) -> ir.Value:
    """`x` behind the activation that a fused op names, with its parameters."""
    if not name:
        return x
    if name in ("Relu", "Tanh", "Sigmoid"):
        return put.op(name, [x])
    if name == "LeakyRelu":
        return put.op(name, [x], {"alpha": params[0] if params else 0.01})
    if name == "Clip":
        return put.op(name, [x, *(put.scalar_like(x, bound) for bound in params)])
    if name == "HardSigmoid":
        return put.op(name, [x], {"alpha": params[0], "beta": params[1]} if len(params) > 1 else {})
    raise Untaken(f"activation {name}")


def _params(node: ir.Node) -> list[float]:
    return [float(number) for number in attribute(node, "activation_params", [])]


def fused_conv(node: ir.Node) -> int:
    """activation(Conv(x, w, b) + z)."""
    put = Instead(node)
    kept = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    made = put.op("Conv", node.inputs[:3], {name: attribute(node, name) for name in kept})
    z = given(node, 3)
    made = put.op("Add", [made, z]) if z is not None else made
    return put.done(activated(put, _typed(made, node.inputs[0]), attribute(node, "activation"), _params(node)))


def fused_gemm(node: ir.Node) -> int:
    """activation(Gemm(a, b, c))."""
    put = Instead(node)
    kept = {name: attribute(node, name) for name in ("alpha", "beta", "transA", "transB")}
    made = _typed(put.op("Gemm", node.inputs, kept), node.inputs[0])
    params = [attribute(node, f"activation_{name}") for name in ("alpha", "beta", "gamma")]
    return put.done(activated(put, made, attribute(node, "activation"), [p for p in params if p is not None]))


def fused_mat_mul(node: ir.Node) -> int:
    """alpha * A @ B, each with its last two dims swapped where transA, transB say so."""
    if attribute(node, "transBatchA", 0) or attribute(node, "transBatchB", 0):
        raise Untaken("transBatchA and transBatchB")
    put = Instead(node)
    sides = [
        swapped(put, value, name) if attribute(node, name, 0) else value
        for value, name in zip(node.inputs, ("transA", "transB"), strict=True)
    ]
    made = put.op("MatMul", sides)
    alpha = attribute(node, "alpha", 1.0)
    if alpha != 1.0:
        made = put.op("Mul", [made, put.scalar_like(node.inputs[0], alpha)])
    return put.done(made)


def swapped(put: Instead, value: ir.Value | None, what: str) -> ir.Value:
    """`value` with its last two dims swapped."""
    if value is None or value.shape is None:
        raise Untaken(f"{what} of an input whose rank is not known")
    rank = len(value.shape)
    if rank < 2:
        return value
    return put.op("Transpose", [value], {"perm": [*range(rank - 2), rank - 1, rank - 2]})


def gelu(node: ir.Node) -> int:
    """x / 2 * (1 + erf(x / sqrt 2)), of x + bias in BiasGelu."""
    put = Instead(node)
    x, bias = node.inputs[0], given(node, 1)
    x = put.op("Add", [x, bias]) if bias is not None else x
    like = node.inputs[0]
    erf = put.op("Erf", [put.op("Div", [x, put.scalar_like(like, math.sqrt(2))])])
    grown = put.op("Mul", [x, put.op("Add", [erf, put.scalar_like(like, 1)])])
    return put.done(put.op("Mul", [grown, put.scalar_like(like, 0.5)]))


def fast_gelu(node: ir.Node) -> int:
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), of x + bias."""
    put = Instead(node)
    x, bias = node.inputs[0], given(node, 1)
    x = put.op("Add", [x, bias]) if bias is not None else x
    like = node.inputs[0]
    cube = put.op("Mul", [put.op("Mul", [x, x]), put.op("Mul", [x, put.scalar_like(like, 0.044715)])])
    inner = put.op("Mul", [put.op("Add", [x, cube]), put.scalar_like(like, math.sqrt(2 / math.pi))])
    grown = put.op("Mul", [x, put.op("Add", [put.op("Tanh", [inner]), put.scalar_like(like, 1)])])
    return put.done(put.op("Mul", [grown, put.scalar_like(like, 0.5)]))


def quick_gelu(node: ir.Node) -> int:
    """x * sigmoid(alpha x)."""
    put = Instead(node)
    x = node.inputs[0]
    alpha = put.scalar_like(x, attribute(node, "alpha", 1.702))
    return put.done(put.op("Mul", [x, put.op("Sigmoid", [put.op("Mul", [x, alpha])])]))


def root_mean_square(put: Instead, x: ir.Value, scale: ir.Value | None, epsilon: float, axis: int = -1) -> ir.Value:
    """x / sqrt(mean(x^2) + epsilon) * scale, over the last dim."""
    if axis != -1 and (x.shape is None or axis != len(x.shape) - 1):
        raise Untaken("a norm over more than the last dim")
    mean = put.op("ReduceMean", [put.op("Mul", [x, x]), put.ints(-1)], {"keepdims": 1})
    root = put.op("Sqrt", [put.op("Add", [mean, put.scalar_like(x, epsilon)])])
    return put.op("Mul", [put.op("Div", [x, root]), scale])


def simplified_layer_normalization(node: ir.Node) -> int:
    """See `root_mean_square`."""
    _only_first(node)
    put = Instead(node)
    x, scale = node.inputs
    assert x is not None
    epsilon, axis = attribute(node, "epsilon", 1e-5), attribute(node, "axis", -1)
    return put.done(root_mean_square(put, x, scale, epsilon, axis))


def skip_layer_normalization(node: ir.Node) -> int:
    """LayerNormalization(x + skip + bias) * gamma + beta; the sum is the fourth output."""
    put = Instead(node)
    x, skip, gamma, beta = (given(node, index) for index in range(4))
    total = _sum(put, x, skip, given(node, 4))
    epsilon = attribute(node, "epsilon", 1e-12)
    made = put.op("LayerNormalization", [total, gamma, beta], {"axis": -1, "epsilon": epsilon})
    return put.done(made, *_and_sum(node, total))


def skip_simplified_layer_normalization(node: ir.Node) -> int:
    """`root_mean_square` of x + skip + bias; the sum is the fourth output."""
    put = Instead(node)
    x, skip, gamma = (given(node, index) for index in range(3))
    total = _sum(put, x, skip, given(node, 3))
    made = root_mean_square(put, total, gamma, attribute(node, "epsilon", 1e-12))
    return put.done(made, *_and_sum(node, total))


def _sum(put: Instead, x: ir.Value | None, skip: ir.Value | None, bias: ir.Value | None) -> ir.Value:
    total = _typed(put.op("Add", [x, skip]), x)
    return _typed(put.op("Add", [total, bias]), x) if bias is not None else total


def _and_sum(node: ir.Node, total: ir.Value) -> list[ir.Value | None]:
    if any(not unread(out) for out in node.outputs[1:3]):
        raise Untaken("its mean or deviation is read")
    return [None, None, total if len(node.outputs) > 3 and not unread(node.outputs[3]) else None]


def _only_first(node: ir.Node) -> None:
    if any(not unread(out) for out in node.outputs[1:]):
        raise Untaken("an output beyond the first is read")


def _typed(made: ir.Value, like: ir.Value | None) -> ir.Value:
    if like is not None and like.dtype is not None:
        made.dtype = like.dtype
    return made


def embed_layer_normalization(node: ir.Node) -> int:
    """LayerNormalization(word[ids] + position[0..S) + segment[segments]); the mask's row sums are the second output."""
    put = Instead(node)
    ids, segments, word, position, segment, gamma, beta, mask, places = (given(node, index) for index in range(9))
    total = put.op("Gather", [word, ids])
    if places is None:
        length = put.op("Shape", [ids], {"start": 1, "end": 2})
        rows = put.op("Slice", [position, put.ints(0), length, put.ints(0)])
    else:
        rows = put.op("Gather", [position, places])
    total = put.op("Add", [total, rows])
    if segment is not None:
        total = put.op("Add", [total, put.op("Gather", [segment, segments])])
    epsilon = attribute(node, "epsilon", 1e-12)
    made = put.op("LayerNormalization", [total, gamma, beta], {"axis": -1, "epsilon": epsilon})
    count: ir.Value | None = None
    if len(node.outputs) > 1 and not unread(node.outputs[1]):
        if mask is None:
            raise Untaken("a mask index is read, and there is no mask")
        count = put.op("ReduceSum", [mask, put.ints(1)], {"keepdims": 0})
    whole = total if len(node.outputs) > 2 and not unread(node.outputs[2]) else None
    return put.done(made, count, whole)


def mat_mul_n_bits(node: ir.Node) -> int:
    """A @ W^T: the packed weight W [N, K], a scale and zero point a block of K, unpacked once into floats."""
    a, packed, scales, zeros, groups, bias = (given(node, index) for index in range(6))
    bits, block = attribute(node, "bits", 4), attribute(node, "block_size")
    columns, rows = attribute(node, "N"), attribute(node, "K")
    data, scale = array(packed), array(scales)
    if bits not in (2, 4, 8) or groups is not None or data is None or scale is None or data.dtype != np.uint8:
        raise Untaken("a weight that is not constant, in 2, 4 or 8 bits, in order")
    blocks = -(-rows // block)
    numbers = _unpacked(data.reshape(columns, blocks, -1), bits)[..., :block].astype(np.float32)
    middle = np.full((columns, blocks), float(1 << (bits - 1)), np.float32)
    if zeros is not None:
        points = array(zeros)
        if points is None:
            raise Untaken("zero points that are not constant")
        if points.dtype == np.uint8:
            points = _unpacked(points.reshape(columns, -1), bits)[:, :blocks]
        middle = points.reshape(columns, blocks).astype(np.float32)
    weight = (numbers - middle[..., None]) * scale.reshape(columns, blocks, 1).astype(np.float32)
    weight = weight.reshape(columns, -1)[:, :rows].T
    put = Instead(node)
    kind = scale.dtype
    made = put.op("MatMul", [a, put.constant(np.ascontiguousarray(weight).astype(kind))])
    return put.done(put.op("Add", [made, bias]) if bias is not None else made)


def _unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """The numbers packed into the bytes of the last dim, lowest bits first."""
    each = [(packed >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(each, -1).reshape(*packed.shape[:-1], -1)


REWRITES: dict[str, Rewrite] = {
    "FusedConv": fused_conv,
    "FusedGemm": fused_gemm,
    "FusedMatMul": fused_mat_mul,
    "TransposeMatMul": fused_mat_mul,
    "Gelu": gelu,
    "BiasGelu": gelu,
    "FastGelu": fast_gelu,
    "QuickGelu": quick_gelu,
    "SimplifiedLayerNormalization": simplified_layer_normalization,
    "SkipLayerNormalization": skip_layer_normalization,
    "SkipSimplifiedLayerNormalization": skip_simplified_layer_normalization,
    "EmbedLayerNormalization": embed_layer_normalization,
    "MatMulNBits": mat_mul_n_bits,
}
