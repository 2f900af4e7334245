"""Scaled dot-product attention as TensorRT's fused attention kernels expect to find it.

torch.onnx's own translation flattens and reshapes the keys, scales both operands, and guards the softmax
against NaN; each of these keeps TensorRT from recognising attention. This one writes

    softmax((Q * scale) @ transpose(K, 0 1 3 2) + mask) @ V

A boolean mask becomes an additive one: 0 where a query may look, MASKED where not. MASKED is finite in
every float dtype, and so is the sum of two, and exp of it underflows to 0 in all of them; so the softmax has
no NaN to guard against. It differs from eager only where a query may look at nothing at all: eager gives
zeros, the softmax alone would give the mean of V. Such queries come from combining a mask that depends on
the positions of query and key (causal, windowed) with one that depends on the data (padding on the left);
where the mask is of that kind, or is an input with a row for each query, rows without a key are set to zero
by one multiplication after the last MatMul, which leaves the pattern above intact.
"""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import opset20

# onnxscript types each operand by the ONNX types allowed, which values recorded while tracing do not carry.
op: Any = opset20

# Half of FP16's most negative number: two masks still add up to a finite one.
MASKED = -3.0e4

_ORDER = frozenset({"Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Trilu"})


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Translate `aten::scaled_dot_product_attention`; query [..., H, L, E], key [..., H, S, E], value [..., H, S, Ev].

    With `enable_gqa` each key head serves H / Hk query heads. Dropout is inactive, as in eval mode.
    """
    rank = len(query.shape)
    if enable_gqa and query.shape[-3] != key.shape[-3]:
        key, value = _repeated(key, query.shape[-3]), _repeated(value, query.shape[-3])
    factor = scale if scale is not None else 1.0 / math.sqrt(int(query.shape[-1]))
    scaled = op.Mul(query, _constant(factor, query.dtype))
    turned = op.Transpose(key, perm=[*range(rank - 2), rank - 1, rank - 2])
    scores = op.MatMul(scaled, turned)
    allowed = None
    if is_causal:
        attn_mask = _causal(query, key)
    if attn_mask is not None:
        if is_causal or attn_mask.dtype == ir.DataType.BOOL:
            allowed = attn_mask if not is_causal and _may_empty_a_row(attn_mask) else None
            attn_mask = op.Where(attn_mask, _constant(0.0, query.dtype), _constant(MASKED, query.dtype))
        scores = op.Add(scores, attn_mask)
    result = op.MatMul(op.Softmax(scores, axis=-1), value)
    if allowed is None:
        return result
    some = op.ReduceMax(op.Cast(allowed, to=query.dtype), op.Constant(value_ints=[-1]), keepdims=1)
    return op.Mul(result, some)


def _constant(value: float, dtype: ir.DataType) -> Any:
    return op.Constant(value=ir.tensor(value, dtype=dtype))


def _causal(query: Any, key: Any) -> Any:
    """Boolean [L, S]: query i may look at keys 0..i, counted from the start of both, as torch does."""
    rows, columns = _positions(query), _positions(key)
    return op.GreaterOrEqual(op.Unsqueeze(rows, op.Constant(value_ints=[1])), columns)


def _positions(tensor: Any) -> Any:
    """0, 1, ... along axis -2."""
    length = op.Squeeze(op.Shape(tensor, start=-2, end=-1), op.Constant(value_ints=[0]))
    return op.Range(op.Constant(value_int=0), length, op.Constant(value_int=1))


def _repeated(heads: Any, wanted: int) -> Any:
    """Each of the Hk heads H / Hk times in a row: [B, Hk, S, E] to [B, H, S, E]. The numbers of heads are static."""
    groups, width = int(heads.shape[-3]), int(heads.shape[-1])
    lead, length = op.Shape(heads, end=-3), op.Shape(heads, start=-2, end=-1)
    count, each, every, size = (
        op.Constant(value_ints=[n]) for n in (groups, int(wanted) // groups, int(wanted), width)
    )
    spread = op.Concat(lead, count, each, length, size, axis=0)
    copies = op.Expand(op.Unsqueeze(heads, op.Constant(value_ints=[-3])), spread)
    return op.Reshape(copies, op.Concat(lead, every, length, size, axis=0))


def _may_empty_a_row(mask: Any) -> bool:
    """Whether the mask mixes the order of positions with data, or is itself an input with a row for each query."""
    rows = mask.shape[-2] if mask.shape is not None and len(mask.shape) > 1 else 1
    if rows == 1:
        return False
    ordered, data = False, False
    waiting, seen = [mask], set()
    while waiting:
        value = waiting.pop()
        if value is None or id(value) in seen:
            continue
        seen.add(id(value))
        node = value.producer()
        if node is None:
            data |= value.const_value is None
            ordered |= value is mask
        elif node.op_type not in ("Shape", "Size"):
            between = sum(_varies(x) for x in node.inputs if x is not None) > 1
            ordered |= node.op_type == "Trilu" or (node.op_type in _ORDER and between)
            waiting.extend(node.inputs)
    return ordered and data


def _varies(value: Any) -> bool:
    """Whether a value is more than a scalar constant."""
    producer = value.producer()
    return value.const_value is None and (producer is None or producer.op_type != "Constant")


TRANSLATION: dict[Any, Any] = {torch.ops.aten.scaled_dot_product_attention.default: attention}
