"""Masks that are true throughout."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import Dim, array, broadcast, bypass, dims, made_by, nodes, scalar

_MOVES = ("Unsqueeze", "Squeeze", "Reshape", "Expand", "Transpose", "Slice", "Identity")
_ELEMENTWISE = ("And", "Or", "Not", "Where", "Add", "Sub", "Mul", "Cast")


def _never_negative(value: ir.Value | None) -> bool:
    data = array(value)
    if data is not None:
        return bool((data >= 0).all())
    if made_by(value, "Shape", "Size"):
        return True
    counter = made_by(value, "Range")
    if counter is not None:
        start, step = scalar(counter.inputs[0]), scalar(counter.inputs[2])
        return start is not None and step is not None and start >= 0 and step > 0
    moved = made_by(value, *_MOVES)
    return moved is not None and _never_negative(moved.inputs[0])


def _always_true(value: ir.Value | None) -> bool:
    data = array(value)
    if data is not None:
        return data.dtype.kind == "b" and bool(data.all())
    compared = made_by(value, "GreaterOrEqual", "Greater")
    if compared is not None:
        bound = scalar(compared.inputs[1])
        low_enough = bound is not None and (bound < 0 or (bound == 0 and compared.op_type == "GreaterOrEqual"))
        return low_enough and _never_negative(compared.inputs[0])
    both = made_by(value, "And")
    if both is not None:
        return all(map(_always_true, both.inputs))
    moved = made_by(value, *_MOVES)
    return moved is not None and _always_true(moved.inputs[0])


def _narrowed(value: ir.Value, shape: Sequence[Dim]) -> dict[ir.Value, tuple[Dim, ...]] | None:
    """The values whose shape changes when `value` has `shape` instead, with the new shapes.

    None where the change would reach an output of the graph or an op that does not broadcast.
    """
    if tuple(shape) == dims(value):
        return {}
    changes = {value: tuple(shape)}
    todo = [value]
    while todo:
        changed = todo.pop()
        if changed.is_graph_output():
            return None
        for use in changed.uses():
            if use.node.domain or use.node.op_type not in _ELEMENTWISE:
                return None
            out: tuple[Dim, ...] | None = ()
            for operand in use.node.inputs:  # more than one of them may have changed
                known = dims(operand) if operand is None else changes.get(operand, dims(operand))
                out = None if known is None or out is None else broadcast(out, known)
            if out is None:
                return None
            result = use.node.outputs[0]
            if out != changes.get(result, dims(result)):
                changes[result] = out
                todo.append(result)
    return changes


@graph_pass(
    anchors=("And", "Where"),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,S,S] x, bool[B,1,S] keep) => (float[B,S,S] y)
    <int64 zero = {0}, int64 one = {1}, int64[2] around = {0, 2}, float fill = {0}, float low = {-9},
     int64[S] r>
    { s = Shape<start = 1, end = 2>(x)  s0 = Squeeze(s)  r = Range(zero, s0, one)  q = Unsqueeze(r, around)
      all = GreaterOrEqual(q, zero)  mask = And(all, keep)  m = Where(mask, fill, low)  a = Add(x, m)
      y = Where(all, a, low) }
    """,
)
def true_masks(model: ir.Model, skip: Skip) -> int:
    """And(true, m) = m and Where(true, m, n) = m: a position, which is never negative, is always >= 0.

    The node may have broadcast m to a larger shape; it is dropped where those who read it broadcast m just as well.
    """
    changed = 0
    for node in nodes(model, "And", "Where"):
        for true, other in ((0, 1), (1, 0)) if node.op_type == "And" else ((0, 1),):
            kept = node.inputs[other]
            if not _always_true(node.inputs[true]) or kept is None:
                continue
            shape, out = dims(kept), node.outputs[0]
            before = dims(out)
            if shape is None or before is None or None in (*shape, *before):
                skip(node, "the shape of the mask is not known")
                continue
            narrowed = _narrowed(out, shape)
            if narrowed is None:
                skip(node, f"{list(shape)} in place of {list(before)} would change the shape of a result")
                continue
            for value, new in narrowed.items():
                value.shape = ir.Shape(new)
            bypass(node, kept)
            changed += 1
            break
    return changed
