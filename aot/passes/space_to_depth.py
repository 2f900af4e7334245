"""Pixels that become channels and channels that become pixels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import array, attribute, dims, made_by, nodes, only_user, opset, replace
from aot.passes._views import VIEWS, Layout, Size, arguments, chain, insert, views

# (start, step) by axis.
_Strides = dict[int, tuple[int, int]]


def _strided(value: ir.Value | None) -> tuple[ir.Value, _Strides] | None:
    """(x, strides), where `value` is every step-th element of x along some axes, to the end; None where it is not."""
    strides: _Strides = {}
    while (node := made_by(value, "Slice")) is not None:
        shape, given = dims(node.inputs[0]), [array(told) for told in node.inputs[1:]]
        if shape is None or len(given) < 4 or any(told is None for told in given):
            return None
        for start, end, axis, step in np.stack([told.reshape(-1) for told in given if told is not None]).T.tolist():
            size = shape[axis]
            if axis % len(shape) in strides or not isinstance(size, int) or end < size or not 0 <= start < step:
                return None
            strides[axis % len(shape)] = (start, step)
        value = node.inputs[0]
    return (value, strides) if value is not None and strides else None


@graph_pass(
    anchors=("Slice",),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,4,6,3] x) => (float[B,2,3,12] y)
    <int64[1] o = {0}, int64[1] i = {1}, int64[1] e = {9}, int64[1] s = {2}, int64[1] h = {1}, int64[1] w = {2}>
    { a = Slice(x, o, e, h, s)  b = Slice(x, i, e, h, s)  c = Slice(a, o, e, w, s)  d = Slice(b, o, e, w, s)
      f = Slice(a, i, e, w, s)  g = Slice(b, i, e, w, s)  y = Concat<axis = -1>(c, d, f, g) }
    """,
)
def patch_merging(model: ir.Model, skip: Skip) -> int:
    """Concat of every s-th row and column, each offset once, is a Reshape that takes rows and columns apart, a
    Transpose that brings the offsets in front of the channels, and a Reshape that joins them.
    """
    changed = 0
    for node in nodes(model, "Concat"):
        found = [_strided(value) for value in node.inputs]
        if len(found) < 4 or any(one is None or one[0] is not found[0][0] for one in found):  # type: ignore[index]
            continue
        x, strides = found[0][0], [one[1] for one in found if one is not None]  # type: ignore[index]
        layout, axes = Layout.of(dims(x)), sorted(strides[0])
        if layout is None or len(axes) != 2 or any(sorted(one) != axes for one in strides):
            continue
        channels = attribute(node, "axis", 0) % len(layout.before)
        steps = [strides[0][axis][1] for axis in axes]
        if channels in axes or any([one[axis][1] for axis in axes] != steps for one in strides):
            continue
        starts = [tuple(one[axis][0] for axis in axes) for one in strides]
        outer = next((at for at in (0, 1) if starts == _counted(steps, at)), None)
        parts = [_apart(layout, axis, step) for axis, step in zip(axes, steps, strict=True)]
        if outer is None or None in parts:
            skip(node, "the offsets do not count through rows and columns, or do not divide them")
            continue
        layout.after[channels][:0] = [offset for offset in (parts[outer], parts[1 - outer]) if offset is not None]
        fewest = views(layout)
        if fewest is None:
            continue
        value = insert(model, fewest[:-1], x, node, str(node.outputs[0].name))
        replace(node, fewest[-1].op, *arguments(model, fewest[-1], value, str(node.outputs[0].name)))
        changed += 1
    return changed


def _counted(steps: Sequence[int], outer: int) -> list[tuple[int, ...]]:
    """All offsets (row, column), that of axis `outer` counting more slowly."""
    pairs = [(a, b) for a in range(steps[outer]) for b in range(steps[1 - outer])]
    return [pair if outer == 0 else pair[::-1] for pair in pairs]


def _apart(layout: Layout, axis: int, step: int) -> int | None:
    """Take the offset out of a dim of the result; its factor, None where the step does not divide the dim."""
    (factor,) = layout.after[axis] or (None,)
    rest = layout.sizes[factor].over(Size(step)) if factor is not None else None
    if factor is None or rest is None:
        return None
    if rest == Size():
        layout.after[axis] = []
        return factor
    outer, inner = layout.split(factor, rest, Size(step))
    layout.after[axis] = [outer]
    return inner


@graph_pass(
    anchors=("Reshape",),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,8,2,3] x) => (float[B,2,4,6] y) <int64[6] apart = {-1, 2, 2, 2, 2, 3}, int64[4] joined = {-1, 2, 4, 6}>
    { r = Reshape(x, apart)  t = Transpose<perm = [0, 1, 4, 2, 5, 3]>(r)  y = Reshape(t, joined) }
    """,
)
def depth_to_space(model: ir.Model, skip: Skip) -> int:
    """Views that bring blocks of channels between the pixels are DepthToSpace, in either of its orders; those that
    bring blocks of pixels in front of the channels are SpaceToDepth.
    """
    changed = 0
    for last in nodes(model, "Reshape"):
        found = chain(last)
        reader = only_user(last.outputs[0])
        if len(found) < 3 or (reader is not None and made_by(reader.outputs[0], *VIEWS) is reader):
            continue
        x = found[0].inputs[0]
        layout = Layout.of(dims(x))
        if layout is None or not all(map(layout.apply, found)) or not len(layout.before) == len(layout.after) == 4:
            continue
        told = _blocks(layout)
        if told is None or (told[1].get("mode") == "CRD" and opset(model) < 11):
            continue
        replace(last, told[0], [x], told[1])
        changed += 1
    return changed


def _blocks(layout: Layout) -> tuple[str, dict[str, int | str]] | None:
    """The op that a layout is, with its attributes."""
    (batch, *was), (first, *now) = layout.before, layout.after
    if batch != first:
        return None
    for op, (channels, rows, columns), (rest, high, wide) in (
        ("DepthToSpace", was, now),
        ("SpaceToDepth", now, was),
    ):
        blocks = [side[len(whole) :] for side, whole in ((high, rows), (wide, columns))]
        if [high[: len(rows)], wide[: len(columns)]] != [rows, columns] or any(len(block) != 1 for block in blocks):
            continue
        both, size = [factor for block in blocks for factor in block], layout.size(blocks[0])
        if size.symbols or size != layout.size(blocks[1]):
            continue
        if channels == [*both, *rest]:
            return op, {"blocksize": size.number, **({"mode": "DCR"} if op == "DepthToSpace" else {})}
        if channels == [*rest, *both] and op == "DepthToSpace":
            return op, {"blocksize": size.number, "mode": "CRD"}
    return None
