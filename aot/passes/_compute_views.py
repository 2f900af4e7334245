"""Ops that move, pick, repeat or fill in elements of constants, in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from aot.passes._edit import attribute
from aot.passes._kernel import Array, Unfoldable, kernel, room


def _listed(node: ir.Node, name: str, given: Array | None) -> list[int] | None:
    """Axes and the like, which are an attribute in older opsets and an input in newer ones."""
    found = attribute(node, name) if given is None else given.reshape(-1).tolist()
    return None if found is None else [int(one) for one in found]


@kernel("Reshape")
def _reshape(node: ir.Node, opset: int, x: Array, shape: Array) -> Array:
    target = [int(dim) for dim in shape]
    if not attribute(node, "allowzero", 0):
        target = [x.shape[at] if dim == 0 else dim for at, dim in enumerate(target)]
    return x.reshape(target)


@kernel("Flatten")
def _flatten(node: ir.Node, opset: int, x: Array) -> Array:
    axis = attribute(node, "axis", 1)
    return x.reshape(int(np.prod(x.shape[: axis if axis >= 0 else x.ndim + axis], dtype=np.int64)), -1)


@kernel("Transpose")
def _transpose(node: ir.Node, opset: int, x: Array) -> Array:
    return np.transpose(x, attribute(node, "perm"))


@kernel("Unsqueeze")
def _unsqueeze(node: ir.Node, opset: int, x: Array, axes: Array | None = None) -> Array:
    return np.expand_dims(x, tuple(_listed(node, "axes", axes) or ()))


@kernel("Squeeze")
def _squeeze(node: ir.Node, opset: int, x: Array, axes: Array | None = None) -> Array:
    listed = _listed(node, "axes", axes)
    return np.squeeze(x, None if listed is None else tuple(listed))


@kernel("Expand")
def _expand(node: ir.Node, opset: int, x: Array, shape: Array) -> Array:
    target = np.broadcast_shapes(x.shape, tuple(int(dim) for dim in shape))
    room(target, x.dtype.itemsize)
    return np.broadcast_to(x, target)


@kernel("Tile")
def _tile(node: ir.Node, opset: int, x: Array, repeats: Array) -> Array:
    room([dim * int(times) for dim, times in zip(x.shape, repeats, strict=True)], x.dtype.itemsize)
    return np.tile(x, repeats)


@kernel("Concat")
def _concat(node: ir.Node, opset: int, *parts: Array) -> Array:
    return np.concatenate(parts, axis=attribute(node, "axis"))


@kernel("Split")
def _split(node: ir.Node, opset: int, x: Array, sizes: Array | None = None) -> list[Array]:
    axis, count = attribute(node, "axis", 0), len(node.outputs)
    listed = _listed(node, "split", sizes)
    if listed is None:
        each = -(-x.shape[axis] // count)
        listed = [each] * (count - 1) + [x.shape[axis] - each * (count - 1)]
    if sum(listed) != x.shape[axis] or min(listed) < 0:
        raise Unfoldable("the parts do not add up")
    return np.split(x, np.cumsum(listed)[:-1], axis=axis)


@kernel("Slice")
def _slice(
    node: ir.Node,
    opset: int,
    x: Array,
    starts: Array | None = None,
    ends: Array | None = None,
    axes: Array | None = None,
    steps: Array | None = None,
) -> Array:
    first, last = _listed(node, "starts", starts) or [], _listed(node, "ends", ends) or []
    along = _listed(node, "axes", axes) or list(range(len(first)))
    step = [1] * len(first) if steps is None else [int(one) for one in steps]
    window = [slice(None)] * x.ndim
    for axis, *bounds in zip(along, first, last, step, strict=True):
        window[axis] = slice(*bounds)
    return x[tuple(window)]


@kernel("Gather")
def _gather(node: ir.Node, opset: int, x: Array, indices: Array) -> Array:
    axis = attribute(node, "axis", 0)
    room((*x.shape[:axis], *indices.shape, *x.shape[axis:][1:]), x.dtype.itemsize)
    return np.asarray(np.take(x, indices, axis=axis))


@kernel("GatherElements")
def _gather_elements(node: ir.Node, opset: int, x: Array, indices: Array) -> Array:
    axis = attribute(node, "axis", 0)
    if any(i > n for at, (i, n) in enumerate(zip(indices.shape, x.shape, strict=True)) if at != axis % x.ndim):
        raise Unfoldable("indices beyond the data")
    window = tuple(slice(None) if at == axis % x.ndim else slice(n) for at, n in enumerate(indices.shape))
    return np.take_along_axis(x[window], indices, axis)


@kernel("GatherND")
def _gather_nd(node: ir.Node, opset: int, x: Array, indices: Array) -> Array:
    batch = attribute(node, "batch_dims", 0)
    lead = np.ogrid[tuple(slice(n) for n in x.shape[:batch])] if batch else []
    wide = [grid.reshape(*grid.shape, *(1,) * (indices.ndim - 1 - batch)) for grid in lead]
    places: Any = np.moveaxis(indices, -1, 0)
    return np.asarray(x[(*wide, *places)])


@kernel("ScatterND")
def _scatter_nd(node: ir.Node, opset: int, x: Array, indices: Array, updates: Array) -> Array:
    made = x.copy()
    places: Any = np.moveaxis(indices, -1, 0)
    _write(made, tuple(places), updates, attribute(node, "reduction", "none"))
    return made


@kernel("ScatterElements")
def _scatter_elements(node: ir.Node, opset: int, x: Array, indices: Array, updates: Array) -> Array:
    axis = attribute(node, "axis", 0) % x.ndim
    places: list[Any] = list(np.indices(indices.shape))
    places[axis] = indices
    made = x.copy()
    _write(made, tuple(places), updates, attribute(node, "reduction", "none"))
    return made


def _write(into: Array, at: tuple[Array, ...], updates: Array, reduction: str) -> None:
    if reduction == "none":
        into[at] = updates
    else:
        {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}[reduction].at(into, at, updates)


@kernel("Pad")
def _pad(
    node: ir.Node, opset: int, x: Array, pads: Array | None = None, fill: Array | None = None, axes: Array | None = None
) -> Array:
    mode = attribute(node, "mode", "constant")
    listed = _listed(node, "pads", pads) or []
    along = range(x.ndim) if axes is None else [int(axis) for axis in axes]
    sides = [(0, 0)] * x.ndim
    for place, axis in enumerate(along):
        sides[axis] = listed[place], listed[place + len(listed) // 2]
    if min(listed, default=0) < 0 and mode != "constant":
        raise Unfoldable(f"padding by less than nothing in mode {mode}")
    room([n + max(a, 0) + max(b, 0) for n, (a, b) in zip(x.shape, sides, strict=True)], x.dtype.itemsize)
    # What is cut off goes first: then the sides are independent of each other.
    x = x[tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(x.shape, sides, strict=True))]
    wider = [(max(a, 0), max(b, 0)) for a, b in sides]
    if mode != "constant":
        return np.pad(x, wider, mode={"edge": "edge", "reflect": "reflect", "wrap": "wrap"}[mode])  # type: ignore[call-overload,no-any-return]
    value = attribute(node, "value", 0.0) if fill is None else fill.reshape(())
    made = np.full([n + a + b for n, (a, b) in zip(x.shape, wider, strict=True)], value, x.dtype)
    made[tuple(slice(a, a + n) for n, (a, _) in zip(x.shape, wider, strict=True))] = x
    return made


@kernel("ConstantOfShape")
def _constant_of_shape(node: ir.Node, opset: int, shape: Array) -> Array:
    value = attribute(node, "value")
    fill = np.zeros(1, np.float32) if value is None else value.numpy()
    target: Sequence[int] = [int(dim) for dim in shape]
    room(target, fill.dtype.itemsize)
    return np.full(target, fill.reshape(()), fill.dtype)


@kernel("Range")
def _range(node: ir.Node, opset: int, start: Array, limit: Array, step: Array) -> Array:
    start, limit, step = (value.reshape(()) for value in (start, limit, step))
    if not step:
        raise Unfoldable("a range that does not advance")
    count = max(int(np.ceil((limit.astype(np.float64) - start) / step.astype(np.float64))), 0)
    room((count,), start.dtype.itemsize)
    return (start + np.arange(count) * step).astype(start.dtype)


@kernel("Trilu")
def _trilu(node: ir.Node, opset: int, x: Array, k: Array | None = None) -> Array:
    keep = np.triu if attribute(node, "upper", 1) else np.tril
    return keep(x, 0 if k is None else int(k.reshape(())))


@kernel("NonZero")
def _non_zero(node: ir.Node, opset: int, x: Array) -> Array:
    return np.array(np.nonzero(np.atleast_1d(x)), np.int64)
