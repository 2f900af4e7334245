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
    heads4 = Constant<value_ints = [0, 0, {heads}, {head}]>()
    q4 = Reshape(qw, heads4)  qt = Transpose<perm = [0, 2, 1, 3]>(q4)
    k4 = Reshape(kw, heads4)  kt = Transpose<perm = [0, 2, 3, 1]>(k4)
    v4 = Reshape(vw, heads4)  vt = Transpose<perm = [0, 2, 1, 3]>(v4)
    axes = Constant<value_ints = [1, 2]>()
    m4 = Unsqueeze(added, axes)
    products = MatMul(qt, kt)
    times = Constant<value_float = {scale}>()
    scaled = Mul(products, times)
    scores = Add(scaled, m4)
    limit = Constant<value_float = -9000.0>()
    unmasked = Greater(m4, limit)
    {seen}
    nothing = Constant<value_float = -1e38>()
    none = Constant<value_float = 0.0>()
    kept = Where(seen, scores, nothing)
    shares = Softmax<axis = -1>(kept)
    weights = Where(seen, shares, none)
    sums = MatMul(weights, vt)
    turned = Transpose<perm = [0, 2, 1, 3]>(sums)
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


def function(heads: int, head: int, causal: bool, scale: float, opset: int) -> ir.Function:
    """q [B, L, heads · head], k and v [B, S, heads · head], mask [B, S] -> y as q, computed in FP32.

    A key whose mask is at most -9000 is left out, with `causal` one behind a query too; a query without keys gives 0.
    The function's `overload` tells one choice of these numbers from another.
    """
    text = _TEXT.format(
        opset=opset,
        heads=heads,
        head=head,
        width=heads * head,
        scale=repr(float(scale)),
        seen=_CAUSAL if causal else "seen = Identity(unmasked)",
    )
    proto = onnx.parser.parse_function(text)
    proto.overload = f"h{heads}_e{head}_c{int(causal)}_s{float(scale)!r}"
    return ir.serde.deserialize_function(proto)
