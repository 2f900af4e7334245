"""A gather of all elements in the order in which they lie."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import Dim, array, attribute, constant, dims, made_by, nodes, replace, scalar

_DEPTH = 16
"""Nodes that an index may be computed by."""


@dataclass(frozen=True)
class _Count:
    """An index that is start + the sum of stride times position over its dims, the last dim last."""

    start: int
    strides: tuple[int, ...]


@graph_pass(
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,3,1] x) => (float[B,3,1] y)
    <int64 zero = {0}, int64 one = {1}, int64 three = {3}, int64[1] flat = {-1}, int64[2] right = {1, 2},
     int64[1,3,1] inner = {0, 1, 2}, int64[B] r>
    { b = Shape<end = 1>(x)  n = Squeeze(b)  r = Range(zero, n, one)  m = Mul(r, three)  u = Unsqueeze(m, right)
      index = Add(u, inner)  f = Reshape(x, flat)  y = Gather(f, index) }
    """,
    anchors=("Gather",),
)
def strided_views(model: ir.Model, skip: Skip) -> int:
    """Gather(Reshape(x, [-1]), index) = Reshape(x, shape of index) where the index counts 0, 1, 2, ... through its own
    dims, the last one fastest, and has as many elements as x: only the first dim may be one that varies.

    This is how torch's decomposition of an adaptive pool reads its input with strides.
    """
    changed = 0
    for node in nodes(model, "Gather"):
        flat = made_by(node.inputs[0], "Reshape")
        if flat is None or attribute(node, "axis", 0) not in (0, -1):
            continue
        target, before, shape = array(flat.inputs[1]), dims(flat.inputs[0]), dims(node.inputs[1])
        if target is None or target.tolist() != [-1] or not before or not shape:
            continue
        if None in before or None in shape or sorted(map(str, _large(before))) != sorted(map(str, _large(shape))):
            continue
        found = _count(node.inputs[1], _DEPTH)
        rest = shape[1:]
        if found is None or not all(isinstance(dim, int) for dim in rest):
            skip(node, "its index is not known to count through the elements")
            continue
        sizes = [dim for dim in rest if isinstance(dim, int)]
        wanted = [math.prod(sizes[at:]) for at in range(len(shape))]
        moving = zip(shape, found.strides, wanted, strict=True)
        if found.start != 0 or any(stride != want for dim, stride, want in moving if dim != 1):
            skip(node, "its index leaves elements out or reads them in another order")
            continue
        whole = constant(model, f"{node.outputs[0].name}_shape", np.array([-1, *sizes], np.int64))
        replace(node, "Reshape", [flat.inputs[0], whole])
        changed += 1
    return changed


def _large(shape: tuple[Dim, ...]) -> list[Dim]:
    """The dims other than 1, those that do not vary as one number, since only their product counts."""
    fixed = math.prod(dim for dim in shape if isinstance(dim, int))
    return [*(dim for dim in shape if not isinstance(dim, int)), fixed]


def _count(value: ir.Value | None, depth: int) -> _Count | None:
    """How `value` counts, None where it is not known to."""
    shape = dims(value)
    if value is None or shape is None or not depth:
        return None
    held = array(value)
    if held is not None:
        return _of_constant(held)
    node = made_by(value, "Range", "Unsqueeze", "Mul", "Add")
    if node is None:
        return None
    if node.op_type == "Range":
        start, step = scalar(node.inputs[0]), scalar(node.inputs[2])
        return None if start is None or step is None else _Count(int(start), (int(step),))
    if node.op_type == "Unsqueeze":
        inner, axes = _count(node.inputs[0], depth - 1), array(node.inputs[1]) if len(node.inputs) > 1 else None
        if inner is None or axes is None:
            return None
        wider = list(inner.strides)
        for axis in sorted(int(one) % len(shape) for one in axes):
            wider.insert(axis, 0)
        return _Count(inner.start, tuple(wider))
    a, b = (_count(one, depth - 1) for one in node.inputs)
    if a is None or b is None:
        return None
    left, right = (((0,) * (len(shape) - len(one.strides))) + one.strides for one in (a, b))
    if node.op_type == "Add":
        return _Count(a.start + b.start, tuple(map(sum, zip(left, right, strict=True))))
    if any(right) and any(left):
        return None
    (many, by), strides = ((a, b.start), left) if not any(right) else ((b, a.start), right)
    return _Count(many.start * by, tuple(stride * by for stride in strides))


def _of_constant(held: np.ndarray[Any, Any]) -> _Count | None:
    if not held.size or held.dtype.kind not in "iu":
        return None
    start = int(held[(0,) * held.ndim])
    steps = [(0,) * axis + (1,) + (0,) * (held.ndim - axis - 1) for axis in range(held.ndim)]
    strides = tuple(int(held[step]) - start if held.shape[axis] > 1 else 0 for axis, step in enumerate(steps))
    counted = start + sum(grid * stride for grid, stride in zip(np.indices(held.shape), strides, strict=True))
    return _Count(start, strides) if np.array_equal(held, np.broadcast_to(counted, held.shape)) else None
