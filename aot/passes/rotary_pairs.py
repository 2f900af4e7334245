"""Rotary position embedding of pairs of neighbours, x·cos + [-x1, x0, -x3, x2, ...]·sin, as GPT-J has it."""

from __future__ import annotations

import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import array, attribute, before, dims, made_by, nodes, only_user, opset, replace, same
from aot.passes._views import Size, View, insert, told
from aot.passes.rotary import is_of_body, parts_of, signed


@graph_pass(
    in_one_sweep=True,
    anchors=("Neg",),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,S,4] x, float[B,S,4] sin) => (float[B,S,4] y)
    <int64[1] zero = {0}, int64[1] one = {1}, int64[1] all = {9223372036854775807}, int64[1] last = {2},
     int64[1] two = {2}, int64[1] inner = {-1}, int64[3] flat = {0, 0, 4}>
    { e = Slice(x, zero, all, last, two)  o = Slice(x, one, all, last, two)  n = Neg(o)  u = Unsqueeze(n, inner)
      v = Unsqueeze(e, inner)  c = Concat<axis = -1>(u, v)  r = Reshape(c, flat)  y = Mul(r, sin) }
    """,
)
def rotary_pairs(model: ir.Model, skip: Skip) -> int:
    """With e, o what x holds at even and odd places: [-o, e], in turns, times sin is [o, e], in turns, times
    sin·[-1, 1, -1, 1, ...], the last product once for all layers; and [o, e] in turns is x with its pairs swapped.
    Exact.
    """
    if opset(model) < 13:
        return 0
    changed = 0
    known: dict[ir.Value, ir.Value] = {}
    for product in nodes(model, "Mul"):
        for at in (0, 1):
            turns, sin = product.inputs[at], product.inputs[1 - at]
            x = _turned(turns) if turns is not None and only_user(turns) is product else None
            size = (dims(x) or (None,))[-1]
            if x is None or sin is None or not isinstance(size, int) or (dims(sin) or (None,))[-1] != size:
                continue
            shape = [Size.of(dim) for dim in dims(x) or ()]
            whole = [one for one in shape if one is not None]
            pairs = [*whole[:-1], Size(size // 2), Size(2)]
            apart, together = told(whole, pairs), told(pairs, whole)
            if len(whole) < len(shape) or apart is None or together is None or is_of_body(model, sin):
                skip(product, "its shape is not known well enough to part it")
                continue
            if sin not in known:
                known[sin] = signed(model, sin, [-1, 1] * (size // 2))
            name = str(turns.name if turns is not None else "")
            paired = insert(model, [View(*apart, pairs)], x, product, f"{name}_pairs")
            first, second = parts_of(model, product, paired, len(whole), [1, 1], f"{name}_elements")
            swapped = before(product, "Concat", [second, first], {"axis": -1})
            swapped.type, swapped.shape = x.type, paired.shape
            back = insert(model, [View(*together, whole)], swapped, product, f"{name}_swapped")
            replace(product, "Mul", [back, known[sin]])
            changed += 1
            break
    return changed


def _turned(value: ir.Value) -> ir.Value | None:
    """x, where the value is [-o, e] in turns, in the shape of x."""
    reshape = made_by(value, "Reshape")
    concat = made_by(reshape.inputs[0], "Concat") if reshape is not None else None
    if concat is None or len(concat.inputs) != 2:
        return None
    joined, rank = dims(concat.outputs[0]) or (), len(dims(value) or ())
    if len(joined) != rank + 1 or attribute(concat, "axis") not in (-1, rank):
        return None
    found: list[ir.Value | None] = []
    for one in concat.inputs:
        view = made_by(one, "Unsqueeze")
        axes = array(view.inputs[1]) if view is not None else None
        if view is None or axes is None or axes.size != 1 or int(axes.item()) not in (-1, rank):
            return None
        found.append(view.inputs[0])
    minus = made_by(found[0], "Neg")
    x = _every_second(minus.inputs[0], 1) if minus is not None else None
    shape, turned = dims(x), dims(value)
    if x is None or x is not _every_second(found[1], 0) or shape is None or turned is None:
        return None
    return x if len(shape) == len(turned) and all(map(same, shape, turned)) else None


def _every_second(value: ir.Value | None, first: int) -> ir.Value | None:
    """What the value holds every second element of, along the last axis, from that on."""
    node = made_by(value, "Slice")
    source = node.inputs[0] if node is not None else None
    shape = dims(source)
    size = shape[-1] if shape else None
    if node is None or shape is None or not isinstance(size, int) or size % 2 or len(node.inputs) != 5:
        return None
    given = [array(one) for one in node.inputs[1:]]
    if any(data is None or data.size != 1 for data in given):
        return None
    start, end, axis, step = (int(data.item()) for data in given if data is not None)
    return source if (start, step) == (first, 2) and end >= size and axis in (-1, len(shape) - 1) else None
