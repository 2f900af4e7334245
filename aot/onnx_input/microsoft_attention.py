"""Attention of onnxruntime's own domain, as MatMul and Softmax."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from aot.onnx_input._instead import Instead, given, unread
from aot.passes._edit import attribute


def attention(node: ir.Node) -> int:
    """softmax(scale * Q K^T + mask) V of [Q, K, V] = x W + b, in `num_heads` heads.

    x [batch, length, hidden]. The mask is one of [batch, total] (1 keeps, 0 masks) or [batch, total length] lengths
    of what is not padded at the right, [batch]; `unidirectional` masks what comes later. A masked score gains
    `mask_filter_value`. Cached keys (`past`) are not written out.
    """
    from aot.onnx_input.microsoft import Untaken

    x, weight, bias, mask, past, added = (given(node, index) for index in range(6))
    if past is not None or any(not unread(out) for out in node.outputs[1:]):
        raise Untaken("keys and values are cached")
    if attribute(node, "do_rotary", 0):
        raise Untaken("rotary positions")
    heads = attribute(node, "num_heads")
    sizes = attribute(node, "qkv_hidden_sizes")
    if not sizes:
        if weight is None or weight.shape is None or not isinstance(weight.shape[1], int):
            raise Untaken("the size of its weight is not known")
        sizes = [weight.shape[1] // 3] * 3
    put = Instead(node)
    whole = put.op("MatMul", [x, weight])
    if bias is not None:
        whole = put.op("Add", [whole, bias])
    q, k, v = put.ops("Split", [whole, put.ints(*sizes)], {"axis": -1}, outputs=3)
    scores = _scores(put, q, k, heads, attribute(node, "scale") or (sizes[0] / heads) ** -0.5, x)
    if mask is not None:
        scores = _masked(put, scores, mask, x, attribute(node, "mask_filter_value", -10000.0))
    if attribute(node, "unidirectional", 0):
        scores = _causal(put, scores, x, attribute(node, "mask_filter_value", -10000.0))
    if added is not None:
        scores = put.op("Add", [scores, added])
    return put.done(_mixed(put, scores, v, heads))


def multi_head_attention(node: ir.Node) -> int:
    """softmax(scale * Q K^T + mask) V of Q, K and V [batch, length, hidden] plus a bias, in `num_heads` heads.

    The mask is [batch, total], 1 keeps. Packed inputs and cached keys are not written out.
    """
    from aot.onnx_input.microsoft import Untaken

    q, k, v, bias, mask, added = (given(node, index) for index in range(6))
    if len([value for value in node.inputs[6:] if value is not None]) or any(not unread(o) for o in node.outputs[1:]):
        raise Untaken("keys and values are cached")
    if q is None or k is None or v is None or any(x.shape is None or len(x.shape) != 3 for x in (q, k, v)):
        raise Untaken("packed or four-dimensional inputs")
    heads = attribute(node, "num_heads")
    hidden = [value.shape[2] for value in (q, k, v) if value.shape is not None]
    if not all(isinstance(size, int) for size in hidden):
        raise Untaken("the hidden size is not known")
    put = Instead(node)
    like = q
    if bias is not None:
        parts = put.ops("Split", [bias, put.ints(*hidden)], {"axis": 0}, outputs=3)  # type: ignore[arg-type]
        q, k, v = (put.op("Add", [x, b]) for x, b in zip((q, k, v), parts, strict=True))
    scale = attribute(node, "scale") or (int(hidden[0]) / heads) ** -0.5  # type: ignore[arg-type]
    scores = _scores(put, q, k, heads, scale, like)
    if added is not None:
        scores = put.op("Add", [scores, added])
    if mask is not None:
        scores = _masked(put, scores, mask, like, attribute(node, "mask_filter_value", -10000.0))
    if attribute(node, "unidirectional", 0):
        scores = _causal(put, scores, like, attribute(node, "mask_filter_value", -10000.0))
    return put.done(_mixed(put, scores, v, heads))


def _heads(put: Instead, x: ir.Value, heads: int, perm: list[int]) -> ir.Value:
    return put.op("Transpose", [put.op("Reshape", [x, put.ints(0, 0, heads, -1)])], {"perm": perm})


def _scores(put: Instead, q: ir.Value, k: ir.Value, heads: int, scale: float, like: ir.Value | None) -> ir.Value:
    """Q K^T, its scale on Q: [batch, heads, length, total]."""
    rows = put.op("Mul", [_heads(put, q, heads, [0, 2, 1, 3]), put.scalar_like(like, scale)])
    return put.op("MatMul", [rows, _heads(put, k, heads, [0, 2, 3, 1])])


def _mixed(put: Instead, scores: ir.Value, v: ir.Value, heads: int) -> ir.Value:
    """softmax(scores) V, heads side by side again: [batch, length, hidden]."""
    mixed = put.op("MatMul", [put.op("Softmax", [scores], {"axis": -1}), _heads(put, v, heads, [0, 2, 1, 3])])
    return put.op("Reshape", [put.op("Transpose", [mixed], {"perm": [0, 2, 1, 3]}), put.ints(0, 0, -1)])


def _masked(put: Instead, scores: ir.Value, mask: ir.Value, like: ir.Value | None, low: float) -> ir.Value:
    from aot.onnx_input.microsoft import Untaken

    rank = None if mask.shape is None else len(mask.shape)
    kind = like.dtype if like is not None and like.dtype is not None else ir.DataType.FLOAT
    if rank == 2:
        keep = put.op("Cast", [put.op("Unsqueeze", [mask, put.ints(1, 2)])], {"to": int(kind)})
    elif rank == 1:
        total = put.op("Squeeze", [put.op("Shape", [scores], {"start": 3, "end": 4})])
        zero, one = put.constant(np.array(0, np.int64)), put.constant(np.array(1, np.int64))
        places = put.op("Range", [zero, total, one])
        lengths = put.op("Unsqueeze", [put.op("Cast", [mask], {"to": int(ir.DataType.INT64)}), put.ints(1, 2, 3)])
        keep = put.op("Cast", [put.op("Less", [places, lengths])], {"to": int(kind)})
    else:
        raise Untaken("a mask of three or more dims")
    gone = put.op("Sub", [put.scalar_like(like, 1), keep])
    return put.op("Add", [scores, put.op("Mul", [gone, put.scalar_like(like, low)])])


def _causal(put: Instead, scores: ir.Value, like: ir.Value | None, low: float) -> ir.Value:
    """Where a key comes later than the query, the score gains `low`."""
    kind = like.dtype if like is not None and like.dtype is not None else ir.DataType.FLOAT
    shape = put.op("Shape", [scores], {"start": 2, "end": 4})
    filled = put.op("ConstantOfShape", [shape], {"value": ir.tensor(np.array([low], kind.numpy()))})
    after = put.op("Trilu", [filled, put.constant(np.array(1, np.int64))], {"upper": 1})
    return put.op("Add", [scores, after])


ATTENTION: dict[str, Callable[[ir.Node], int]] = {
    "Attention": attention,
    "MultiHeadAttention": multi_head_attention,
}
