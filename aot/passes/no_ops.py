"""Nodes that hand on one of their inputs as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import EVERYTHING, array, attribute, bypass, dims, nodes, refine, replace, same, scalar

_Find = Callable[[ir.Node], "ir.Value | None"]
_FOUND: dict[str, _Find] = {}
_OLDEST = 7
"""Before, elementwise ops broadcast by attributes and Dropout told training apart by one."""


@graph_pass(
    in_one_sweep=True,
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,4] x) => (float[B,4] y) <float one = {1}, float zero = {0}>
    { a = Mul(x, one)  b = Add(a, zero)  c = Cast<to = 1>(b)  y = Relu(c) }
    """,
)
def drop_no_ops(model: ir.Model, skip: Skip) -> int:
    """A node whose output is one of its inputs, element by element, is that input.

    x·1 = x/1 = x+0 = x-0 = x^1 = x where x keeps its shape; a cast to the type it has, a transpose of nothing, a
    reshape, an expansion or a resize to the same shape, a slice of everything, a pad by nothing, a choice that is
    always the same, a tile once, a concatenation, sum, maximum or split of one, a clip without bounds, a dropout at
    inference, a pool with windows of one, a reduction along dims of 1 that it keeps.

    x+0 keeps -0 as -0, where the sum has +0: both compare equal, and only a division by them tells one from the other,
    so that such a sum is kept.
    """
    changed = 0
    opset = model.opset_imports.get("", 0)
    if opset < _OLDEST:
        return 0
    for node in nodes(model, *_FOUND, "CastLike"):
        if node.op_type == "CastLike":
            like = node.inputs[1].dtype if node.inputs[1] is not None else None
            if like is not None:
                how = {name: given.value for name, given in node.attributes.items()}
                replace(node, "Cast", [node.inputs[0]], {**how, "to": int(like)})
                changed += 1
            continue
        value = _FOUND[node.op_type](node)
        if node.op_type == "Clip" and opset < 11:
            continue  # without bounds it clips to the largest finite numbers
        if value is None or not _only_first(node):
            continue
        refine(value, node.outputs[0])
        if len(node.outputs) > 1:
            node.resize_outputs(1)
        bypass(node, value)
        changed += 1
    return changed


def _only_first(node: ir.Node) -> bool:
    return not any(value.uses() or value.is_graph_output() for value in node.outputs[1:])


def _rule(*ops: str) -> Callable[[_Find], _Find]:
    def enter(find: _Find) -> _Find:
        _FOUND.update(dict.fromkeys(ops, find))
        return find

    return enter


def _unchanged(node: ir.Node) -> ir.Value | None:
    """The first input, where it is known to have the shape of the output."""
    x = node.inputs[0]
    before, after = dims(x), dims(node.outputs[0])
    if before is None or after is None or len(before) != len(after):
        return None
    return x if all(map(same, before, after)) else None


@_rule("Cast")
def _cast(node: ir.Node) -> ir.Value | None:
    x = node.inputs[0]
    return x if x is not None and x.dtype is not None and int(x.dtype) == attribute(node, "to") else None


@_rule("Transpose")
def _transpose(node: ir.Node) -> ir.Value | None:
    perm = attribute(node, "perm")
    shape = dims(node.inputs[0])
    if perm is None:
        return node.inputs[0] if shape is not None and len(shape) < 2 else None
    return node.inputs[0] if list(perm) == sorted(perm) else None


@_rule("Reshape")
def _reshape(node: ir.Node) -> ir.Value | None:
    x = node.inputs[0]
    before, after = dims(x), dims(node.outputs[0])
    if before is None or (after is not None and len(before) != len(after)):
        return None
    if after is not None and all(map(same, before, after)):
        return x
    target = array(node.inputs[1]) if len(node.inputs) > 1 else None
    if target is None or len(before) != target.size or target.ndim != 1:
        return None
    copied = 0 if not attribute(node, "allowzero", 0) else None
    kept = [to in (copied, dim) for to, dim in zip(target.tolist(), before, strict=True)]
    # What is left of the elements is the one dim that is not said.
    return x if all(kept) or (kept.count(False) == 1 and target[kept.index(False)] == -1) else None


@_rule("Expand", "Flatten", "Unsqueeze", "Squeeze")
def _view(node: ir.Node) -> ir.Value | None:
    return _unchanged(node)


@_rule("Resize", "Upsample")
def _resize(node: ir.Node) -> ir.Value | None:
    if attribute(node, "coordinate_transformation_mode") == "tf_crop_and_resize":
        return None
    given = node.inputs[2] if len(node.inputs) > 2 else node.inputs[1] if len(node.inputs) > 1 else None
    if given is None:
        return _unchanged(node) if len(node.inputs) > 3 else None
    scales = array(given)
    if scales is None or not np.all(scales == 1):
        return None
    # No scales at all: sizes say what they are.
    return node.inputs[0] if scales.size else _unchanged(node)


@_rule("Where")
def _where(node: ir.Node) -> ir.Value | None:
    condition, (yes, no) = array(node.inputs[0]), node.inputs[1:3]
    if yes is no:
        chosen = yes
    elif condition is None or not condition.size or condition.any() != condition.all():
        return None
    else:
        chosen = yes if condition.all() else no
    given, made = dims(chosen), dims(node.outputs[0])
    known = given is not None and made is not None and len(given) == len(made) and all(map(same, given, made))
    return chosen if known else None


@_rule("DepthToSpace", "SpaceToDepth")
def _blocks(node: ir.Node) -> ir.Value | None:
    return node.inputs[0] if attribute(node, "blocksize") == 1 else None


@_rule("Slice")
def _slice(node: ir.Node) -> ir.Value | None:
    if len(node.inputs) < 3:
        return _unchanged(node) if attribute(node, "ends") is not None else None
    starts, ends = array(node.inputs[1]), array(node.inputs[2])
    steps = array(node.inputs[4]) if len(node.inputs) > 4 and node.inputs[4] is not None else np.ones(1)
    if steps is None or not np.all(steps == 1):
        return None
    if starts is not None and ends is not None and not starts.any() and np.all(ends >= EVERYTHING):
        return node.inputs[0]
    return _unchanged(node)


@_rule("Pad")
def _pad(node: ir.Node) -> ir.Value | None:
    pads = array(node.inputs[1]) if len(node.inputs) > 1 else attribute(node, "pads")
    return node.inputs[0] if pads is not None and not np.any(pads) else None


@_rule("Tile")
def _tile(node: ir.Node) -> ir.Value | None:
    repeats = array(node.inputs[1])
    return node.inputs[0] if repeats is not None and np.all(repeats == 1) else None


@_rule("Concat", "Sum", "Max", "Min", "Mean")
def _single(node: ir.Node) -> ir.Value | None:
    return node.inputs[0] if len(node.inputs) == 1 else None


@_rule("Split")
def _split(node: ir.Node) -> ir.Value | None:
    return node.inputs[0] if len(node.outputs) == 1 else None


@_rule("Clip")
def _clip(node: ir.Node) -> ir.Value | None:
    return node.inputs[0] if all(bound is None for bound in node.inputs[1:]) else None


@_rule("Dropout")
def _dropout(node: ir.Node) -> ir.Value | None:
    training = node.inputs[2] if len(node.inputs) > 2 else None
    return node.inputs[0] if training is None or scalar(training) == 0 else None


@_rule("MaxPool", "AveragePool")
def _pool(node: ir.Node) -> ir.Value | None:
    ones = (attribute(node, name, (1,)) for name in ("kernel_shape", "strides"))
    if any(set(each) != {1} for each in ones) or any(attribute(node, "pads", ())):
        return None
    return node.inputs[0]


@_rule("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "GlobalAveragePool", "GlobalMaxPool")
def _reduce(node: ir.Node) -> ir.Value | None:
    shape = dims(node.inputs[0])
    if shape is None:
        return None
    if node.op_type.startswith("Global"):
        return node.inputs[0] if all(dim == 1 for dim in shape[2:]) else None
    given = node.inputs[1] if len(node.inputs) > 1 else None
    axes: Any = attribute(node, "axes") if given is None else array(given)
    if given is not None and axes is None:
        return None
    if axes is None or len(axes) == 0:
        axes = [] if attribute(node, "noop_with_empty_axes", 0) else range(len(shape))
    elif not attribute(node, "keepdims", 1):
        return None
    return node.inputs[0] if all(shape[int(axis)] == 1 for axis in axes) and _unchanged(node) is not None else None


@_rule("Mul", "Add", "Sub", "Div", "Pow")
def _neutral(node: ir.Node) -> ir.Value | None:
    neutral = 0 if node.op_type in ("Add", "Sub") else 1
    pairs = [(node.inputs[0], node.inputs[1])]
    if node.op_type in ("Add", "Mul"):
        pairs.append((node.inputs[1], node.inputs[0]))
    for x, other in pairs:
        constant = array(other)
        if constant is None or not constant.size or constant.item(0) != neutral or not np.all(constant == neutral):
            continue
        if x is None or other is None or other.shape is None or not _broadcasts(other, x):
            continue
        if node.op_type in ("Add", "Sub") and not _keeps_zero(node, constant):
            continue
        return x
    return None


def _broadcasts(constant: ir.Value, x: ir.Value) -> bool:
    """Whether x keeps its shape when it is combined with `constant`."""
    small, large = dims(constant), dims(x)
    if small is None or large is None or len(small) > len(large):
        return False
    return all(a == 1 or same(a, b) for a, b in zip(reversed(small), reversed(large), strict=False))


def _keeps_zero(node: ir.Node, zeros: np.ndarray[Any, Any]) -> bool:
    """Whether x±0 is x to the last bit, or nothing reads it that tells 0 from -0."""
    if zeros.dtype.kind in "iu" or np.all(np.signbit(zeros) == (node.op_type == "Add")):
        return True
    return not any(
        use.node.op_type in ("Reciprocal", "Pow", "Atan", "BitCast") or (use.node.op_type == "Div" and use.idx == 1)
        for use in node.outputs[0].uses()
    )
