"""Where attention stands in a graph, in two MatMuls and a Softmax, and what its mask says."""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from aot.passes._edit import Dim, attribute, dims, made_by, only_user, same, scalar

NARROW = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
# A score this much lower has a probability of 0.
_NEVER = -1e4


class Site(NamedTuple):
    """query [B, H, L, E], keys turned [B, H, E, S], value [B, H, S, E]; mask: what was added to the scores."""

    query: ir.Value
    turned: ir.Value
    value: ir.Value
    mask: ir.Value | None


def found(node: ir.Node) -> Site | None:
    """The attention that ends in this MatMul; None where there is none, or what is inside is read elsewhere too."""
    softmax = _inner(node.inputs[0], "Softmax", node)
    if softmax is None or attribute(softmax, "axis", -1) not in (-1, 3):
        return None
    mask = None
    scores = _inner(softmax.inputs[0], "MatMul", softmax)
    add = _inner(softmax.inputs[0], "Add", softmax)
    if add is not None:
        at = 0 if made_by(add.inputs[0], "MatMul") else 1
        scores, mask = _inner(add.inputs[at], "MatMul", add), add.inputs[1 - at]
    if scores is None:
        return None
    query, turned, value = scores.inputs[0], scores.inputs[1], node.inputs[1]
    assert query is not None
    assert turned is not None
    assert value is not None
    return Site(query, turned, value, mask)


def _inner(value: ir.Value | None, op: str, reader: ir.Node) -> ir.Node | None:
    """The node of that type that computes `value`, which only `reader` reads."""
    node = made_by(value, op)
    return node if node is not None and value is not None and only_user(value) is reader else None


def square(mask: ir.Value) -> bool:
    """Whether the mask is causal, with as many queries as keys: builders align others in different ways."""
    sizes = positions(mask)
    return sizes is not None and same(*sizes)


def positions(mask: ir.Value) -> tuple[Dim, Dim] | None:
    """The sizes of a causal mask as the export writes it, whose shape inference cannot name."""
    where = made_by(mask, "Where")
    if where is None or scalar(where.inputs[1]) != 0 or (scalar(where.inputs[2]) or 0) > _NEVER:
        return None
    order = made_by(where.inputs[0], "GreaterOrEqual")
    rows = made_by(order.inputs[0], "Unsqueeze") if order is not None else None
    if order is None or rows is None or scalar(rows.inputs[1]) not in (1, -1):
        return None
    return _count(rows.inputs[0]), _count(order.inputs[1])


def _count(positions: ir.Value | None) -> Dim:
    """How many positions there are, where they are 0, 1, ... along an axis of known size; None where not."""
    steps = made_by(positions, "Range")
    if steps is None or scalar(steps.inputs[0]) != 0 or scalar(steps.inputs[2]) != 1:
        return None
    squeeze = made_by(steps.inputs[1], "Squeeze")
    shape = made_by(squeeze.inputs[0], "Shape") if squeeze is not None else None
    sizes = dims(shape.inputs[0]) if shape is not None else None
    if shape is None or sizes is None:
        return None
    asked = sizes[attribute(shape, "start", 0) : attribute(shape, "end", len(sizes))]
    return asked[0] if len(asked) == 1 else None
