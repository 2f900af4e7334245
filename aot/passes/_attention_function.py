"""What a node aot::attention computes, as a function of ONNX: for whatever runs the graph without its kernel."""

from __future__ import annotations

import onnx.parser
import onnx_ir as ir

DOMAIN, NAME = "aot", "attention"

_TEXT = """
<opset_import: ["" : {opset}], domain: "aot">
attention <heads, causal, scale> (q, k, v, mask) => (y)
{{
    qw = Cast<to = 1>(q)  kw = Cast<to = 1>(k)  vw = Cast<to = 1>(v)  added = Cast<to = 1>(mask)
    groups = Constant<value_ints = [0, 0, {kv_heads}, {group}, {head}]>()
    shared = Constant<value_ints = [0, 0, {kv_heads}, 1, {head}]>()
    q5 = Reshape(qw, groups)  qt = Transpose<perm = [0, 2, 3, 1, 4]>(q5)
    k5 = Reshape(kw, shared)  kt = Transpose<perm = [0, 2, 3, 4, 1]>(k5)
    v5 = Reshape(vw, shared)  vt = Transpose<perm = [0, 2, 3, 1, 4]>(v5)
    axes = Constant<value_ints = [1, 2, 3]>()
    m5 = Unsqueeze(added, axes)
    products = MatMul(qt, kt)
    times = Constant<value_float = {scale}>()
    scaled = Mul(products, times)
    scores = Add(scaled, m5)
    limit = Constant<value_float = -9000.0>()
    unmasked = Greater(m5, limit)
    {seen}
    nothing = Constant<value_float = -1e38>()
    none = Constant<value_float = 0.0>()
    kept = Where(seen, scores, nothing)
    shares = Softmax<axis = -1>(kept)
    weights = Where(seen, shares, none)
    sums = MatMul(weights, vt)
    turned = Transpose<perm = [0, 3, 1, 2, 4]>(sums)
    flat = Constant<value_ints = [0, 0, {width}]>()
    joined = Reshape(turned, flat)
    y = CastLike(joined, q)
}}
"""
_CAUSAL = """
    zero = Constant<value_int = 0>()  one = Constant<value_int = 1>()  side = Constant<value_ints = [1]>()
    scalar = Constant<value_ints = [0]>()
    rows1 = Shape<start = 1, end = 2>(q)  rows = Squeeze(rows1, scalar)
    keys1 = Shape<start = 1, end = 2>(k)  keys = Squeeze(keys1, scalar)
    row = Range(zero, rows, one)  column = Range(zero, keys, one)
    ahead = Sub(keys, rows)  last = Add(row, ahead)  lasts = Unsqueeze(last, side)
    before = LessOrEqual(column, lasts)
    seen = And(unmasked, before)
"""


def function(heads: int, kv_heads: int, head: int, causal: bool, scale: float, opset: int) -> ir.Function:
    """q [B, L, heads · head], k and v [B, S, kv_heads · head], mask [B, S] -> y as q, computed in FP32.

    A key whose mask is at most -9000 is left out, with `causal` one behind a query too; a query without keys gives 0.
    The function's `overload` tells one choice of these numbers from another.
    """
    text = _TEXT.format(
        opset=opset,
        kv_heads=kv_heads,
        group=heads // kv_heads,
        head=head,
        width=heads * head,
        scale=repr(float(scale)),
        seen=_CAUSAL if causal else "seen = Identity(unmasked)",
    )
    proto = onnx.parser.parse_function(text)
    proto.overload = f"h{heads}_{kv_heads}_e{head}_c{int(causal)}_s{float(scale)!r}"
    return ir.serde.deserialize_function(proto)
