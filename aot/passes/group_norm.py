"""Group normalization, which exporters write as another norm between two reshapes, as one node; not in `PASSES`.

It is for a builder that has the operator as it is since opset 21, with one scale a channel. TensorRT's layer has that
since 10.15 (`INetworkDefinition.add_normalization_v2`); TensorRT-RTX 1.7.1 was seen to build it, in FP32 and FP16.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import Dim, array, attribute, constant, dims, made_by, nodes, only_user, opset, replace, same
from aot.passes._views import Layout, shortest

OPSET = 21
"""Since then the operator has a scale and a shift for each channel, not for each group. In between and the one before,
the other ops only took more dtypes."""
_Array = np.ndarray[Any, Any]
_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


class _Grouped(NamedTuple):
    """A norm of `x` [N, C, ...] over each of so many groups of its channels, which ends in `last`, back in that shape.

    scale, shift: of a group, one number each.
    """

    x: ir.Value
    groups: int
    channels: int
    scale: _Array
    shift: _Array
    last: ir.Node


@graph_pass(
    in_one_sweep=True,
    anchors=("InstanceNormalization", "LayerNormalization"),
    example="""
    <ir_version: 10, opset_import: ["" : 21]>
    g (float[B,4,S] x) => (float[B,4,S] y)
    <int64[3] flat = {0, 2, -1}, float[2] ones = {1, 1}, float[2] zeros = {0, 0}, int64[3] back = {0, 4, -1},
     float[4,1] gamma = {1, 2, 3, 4}, float[4,1] beta = {4, 3, 2, 1}>
    { r = Reshape(x, flat)  n = InstanceNormalization<epsilon = 0.01>(r, ones, zeros)  b = Reshape(n, back)
      m = Mul(b, gamma)  y = Add(m, beta) }
    """,
)
def group_norm(model: ir.Model, skip: Skip) -> int:
    """With x [N, C, ...] in the shape [N, G, ...], of which each of the N·G rows is normalized, and back in its own:
    that is GroupNormalization of G groups; so are a scale and a shift behind it, of one number a channel.

    The rows are normalized by InstanceNormalization, or by LayerNormalization that scales nothing, also in FP32 between
    two casts, since the operator computes its statistics in FP32, whatever x is. A scale or shift that the norm itself
    has, of one number a group, is the same number for each of its channels.
    """
    changed, version = 0, opset(model)
    older = version < OPSET and (version < OPSET - 1 or any(nodes(model, "GroupNormalization")))
    for norm in nodes(model, "InstanceNormalization", "LayerNormalization"):
        found = _read(norm)
        if found is None:
            continue
        if older:
            skip(norm, f"the graph, in opset {version}, cannot be raised to {OPSET}, which has one scale a channel")
            continue
        last, gamma = _each(found.last, "Mul", found)
        last, beta = _each(last, "Add", found)
        size = found.channels // found.groups
        scale, shift = np.repeat(found.scale, size), np.repeat(found.shift, size)
        assert found.x.dtype is not None
        kind = found.x.dtype.numpy()
        if gamma is not None:
            scale, shift = scale * gamma, shift * gamma
        if beta is not None:
            shift = shift + beta
        name = norm.outputs[0].name
        inputs = [
            found.x,
            constant(model, f"{name}_scale", scale.astype(kind)),
            constant(model, f"{name}_shift", shift.astype(kind)),
        ]
        epsilon = attribute(norm, "epsilon", 1e-5)
        replace(last, "GroupNormalization", inputs, {"num_groups": found.groups, "epsilon": epsilon}, like=norm)
        changed += 1
    if changed:
        model.opset_imports[""] = max(version, OPSET)
    return changed


def _read(norm: ir.Node) -> _Grouped | None:
    """The norm with the reshapes around it; None for any other."""
    wide = made_by(norm.inputs[0], "Cast")
    parted = made_by(wide.inputs[0] if wide is not None else norm.inputs[0], "Reshape")
    x = parted.inputs[0] if parted is not None else None
    last = only_user(norm.outputs[0])
    if wide is not None and last is not None and last.op_type == "Cast" and not last.domain:
        last = only_user(last.outputs[0])
    if parted is None or x is None or last is None or last.domain or last.op_type != "Reshape":
        return None
    whole, rows = dims(x), dims(parted.outputs[0])
    if whole is None or rows is None or len(whole) < 3 or len(rows) < 3 or x.dtype not in _TYPES:
        return None
    channels, groups = whole[1], rows[1]
    if not isinstance(channels, int) or not isinstance(groups, int) or not groups or channels % groups:
        return None
    if not same(whole[0], rows[0]) or not _undone(whole, parted, last) or last.outputs[0].dtype != x.dtype:
        return None
    own = _own(norm, groups, len(rows))
    return None if own is None or last.graph is not norm.graph else _Grouped(x, groups, channels, *own, last)


def _undone(shape: tuple[Dim, ...], there: ir.Node, back: ir.Node) -> bool:
    """Whether the second reshape brings back the shape that the first one was given."""
    layout = Layout.of(shape)
    return layout is not None and layout.apply(there) and layout.apply(back) and not shortest(layout)


def _own(norm: ir.Node, groups: int, rank: int) -> tuple[_Array, _Array] | None:
    """The scale and the shift of the norm itself, of each group; None where they are computed, or not of a group."""
    scale, shift = (array(norm.inputs[at]) if at < len(norm.inputs) else None for at in (1, 2))
    if norm.op_type == "InstanceNormalization":
        return None if scale is None or shift is None else (scale, shift)
    if scale is None or (shift is None and len(norm.inputs) > 2) or attribute(norm, "axis", -1) % rank != 2:
        return None
    if any(value.uses() or value.is_graph_output() for value in norm.outputs[1:]):
        return None
    plain = np.all(scale == 1) and (shift is None or not np.any(shift))
    return (np.ones(groups, scale.dtype), np.zeros(groups, scale.dtype)) if plain else None


def _each(node: ir.Node, op: str, found: _Grouped) -> tuple[ir.Node, _Array | None]:
    """The one reader of `node`, of that type, and its constant of one number a channel; else `node`."""
    reader = only_user(node.outputs[0])
    if reader is None or reader.domain or reader.op_type != op or reader.graph is not node.graph:
        return node, None
    other = reader.inputs[1 if reader.inputs[0] is node.outputs[0] else 0]
    held, rank = array(other), len(dims(found.x) or ())
    if held is None or held.ndim > rank or held.size != found.channels:
        return node, None
    if ((1,) * (rank - held.ndim) + held.shape)[1] != found.channels:
        return node, None
    return reader, held.reshape(-1)
