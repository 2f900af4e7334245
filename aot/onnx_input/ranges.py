"""What integers of a graph can be, given the ranges of its Dims: shapes, and numbers computed from shapes.

A size inside the graph is a function of the Dims. Shape inference is run with every Dim at its minimum, its optimum
and its maximum, all together and one at a time against the others' optimum; sizes that ops derive from Dims (sums,
products, quotients rounded, strides) grow or fall with each Dim, so the least and the largest found bound it. Numbers
computed from sizes are followed in interval arithmetic: an interval is a pair of arrays (low, high).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from aot.declaration import Dim, Input
from aot.onnx_input._instead import given
from aot.passes._edit import array, attribute

Interval = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
_DEPTH = 100


class Ranges:
    """The shapes and integers of a model over all sizes of its Dims.

    inputs: the declared inputs by name, Dims with their bounds; an integer input with `low` and `high` has values
    in [low, high).
    """

    def __init__(self, model: ir.Model, inputs: Mapping[str, Input]) -> None:
        self._inputs = inputs
        self._low: dict[str, tuple[int, ...]] = {}
        self._high: dict[str, tuple[int, ...]] = {}
        unknown: set[str] = set()
        for shapes in (_shapes(model, inputs, sizes) for sizes in _corners(inputs)):
            for name, shape in shapes.items():
                if shape is None or name in unknown or len(self._low.get(name, shape)) != len(shape):
                    unknown.add(name)
                    continue
                self._low[name] = tuple(map(min, self._low.get(name, shape), shape))
                self._high[name] = tuple(map(max, self._high.get(name, shape), shape))
        for name in unknown:
            self._low.pop(name, None)
            self._high.pop(name, None)

    def shape(self, value: ir.Value | None) -> tuple[tuple[int, int], ...] | None:
        """(least, largest) of every dim; None where a dim is not known at some size of the Dims."""
        name = value.name if value is not None else None
        if name is None or name not in self._low:
            return None
        return tuple(zip(self._low[name], self._high[name], strict=True))

    def value(self, value: ir.Value | None, depth: int = 0) -> Interval | None:
        """The least and the largest of every element; None where they are not known."""
        known = array(value)
        if known is not None:
            return (known, known) if known.dtype.kind in "iub" else None
        if value is None or depth > _DEPTH:
            return None
        if value.is_graph_input():
            return self._fed(str(value.name))
        node = value.producer()
        if node is None or node.domain or value is not node.outputs[0]:
            return None
        if node.op_type in ("Shape", "Size"):
            return self._shape_of(node)
        follow = _FOLLOW.get(node.op_type)
        operands = [self.value(given(node, index), depth + 1) for index in range(len(node.inputs))]
        if follow is None or any(one is None for one in operands):
            return None
        try:
            return follow(node, *operands)
        except (ValueError, IndexError, ZeroDivisionError):
            return None

    def decided(self, condition: ir.Value | None) -> bool | None:
        """What a condition is at all sizes; None where it depends."""
        found = self.value(condition)
        if found is None or found[0].size != 1 or bool(found[0].reshape(())) != bool(found[1].reshape(())):
            return None
        return bool(found[0].reshape(()))

    def _fed(self, name: str) -> Interval | None:
        tensor = self._inputs.get(name)
        if tensor is None or tensor.low is None or tensor.high is None or not tensor.dtype.startswith("int"):
            return None
        shape = [size for size in tensor.shape if isinstance(size, int)]
        if len(shape) < len(tensor.shape):
            return None
        low = np.full(shape, int(tensor.low), np.int64)
        return low, np.full_like(low, int(tensor.high) - 1)

    def _shape_of(self, node: ir.Node) -> Interval | None:
        shape = self.shape(node.inputs[0])
        if shape is None:
            return None
        low, high = (np.array([size[side] for size in shape], np.int64) for side in (0, 1))
        if node.op_type == "Size":
            return np.asarray(low.prod()), np.asarray(high.prod())
        cut = slice(attribute(node, "start", 0), attribute(node, "end"))
        return low[cut], high[cut]


def _corners(inputs: Mapping[str, Input]) -> Iterator[dict[str, int]]:
    dims = {size.name: size.bounds for tensor in inputs.values() for size in tensor.shape if isinstance(size, Dim)}
    opt = {name: bounds[1] for name, bounds in dims.items()}
    yield opt
    if dims:
        yield {name: bounds[0] for name, bounds in dims.items()}
        yield {name: bounds[2] for name, bounds in dims.items()}
    if len(dims) > 1:
        for name, bounds in dims.items():
            yield opt | {name: bounds[0]}
            yield opt | {name: bounds[2]}


def _shapes(
    model: ir.Model, inputs: Mapping[str, Input], sizes: Mapping[str, int]
) -> dict[str, tuple[int, ...] | None]:
    """The shape of every value with the Dims at these sizes; None where inference does not know it."""
    from aot.graph import infer_shapes

    at = model.clone()
    for value in at.graph.inputs:
        if value.name in inputs:
            shape = [sizes[s.name] if isinstance(s, Dim) else s for s in inputs[str(value.name)].shape]
            value.shape = ir.Shape(shape)
    forget_shapes(at)
    infer_shapes(at)
    found: dict[str, tuple[int, ...] | None] = {}
    for value in [*at.graph.inputs, *(out for node in at.graph.all_nodes() for out in node.outputs)]:
        known = None if value.shape is None else tuple(size for size in value.shape if isinstance(size, int))
        found[str(value.name)] = known if known is not None and len(known) == len(value.shape or ()) else None
    return found


def forget_shapes(model: ir.Model) -> None:
    """Drop the shapes that a file says its inner values have: they may be another size's, or simply wrong."""
    for node in model.graph.all_nodes():
        for out in node.outputs:
            if out.const_value is None:
                out.shape = None


Follow = Callable[..., Interval]


def _each(function: Callable[..., np.ndarray[Any, Any]]) -> Follow:
    """For ops that move or keep numbers: the same for both ends."""

    def follow(node: ir.Node, *operands: Interval) -> Interval:
        low, high = (function(node, *(operand[side] for operand in operands)) for side in (0, 1))
        return low, high

    return follow


def _extremes(function: Callable[[Any, Any], Any]) -> Follow:
    """For ops that grow or fall with each operand: the least and the largest over the ends of both."""

    def follow(node: ir.Node, a: Interval, b: Interval) -> Interval:
        all_ends = [np.asarray(function(x, y)) for x in a for y in b]
        return np.minimum.reduce(all_ends), np.maximum.reduce(all_ends)

    return follow


def _divide(a: Any, b: Any) -> Any:
    if np.any(b == 0):
        raise ZeroDivisionError
    return np.trunc(np.asarray(a) / b).astype(np.int64)


def _equal(node: ir.Node, a: Interval, b: Interval) -> Interval:
    same = (a[0] == a[1]) & (b[0] == b[1]) & (a[0] == b[0])
    return same, (a[0] <= b[1]) & (b[0] <= a[1])


def _less(node: ir.Node, a: Interval, b: Interval) -> Interval:
    return a[1] < b[0], a[0] < b[1]


def _less_or_equal(node: ir.Node, a: Interval, b: Interval) -> Interval:
    return a[1] <= b[0], a[0] <= b[1]


def _cast(node: ir.Node, a: Interval) -> Interval:
    kind = ir.DataType(attribute(node, "to")).numpy()
    if kind == np.bool_:
        zero = (a[0] <= 0) & (a[1] >= 0)
        return ~zero, ~((a[0] == 0) & (a[1] == 0))
    if kind.kind not in "iuf":
        raise ValueError(kind)
    return a[0].astype(np.int64), a[1].astype(np.int64)


def _where(node: ir.Node, c: Interval, a: Interval, b: Interval) -> Interval:
    low = np.where(c[0], a[0], np.where(c[1], np.minimum(a[0], b[0]), b[0]))
    return low, np.where(c[0], a[1], np.where(c[1], np.maximum(a[1], b[1]), b[1]))


def _slice(node: ir.Node, x: Interval, start: Interval, end: Interval, *rest: Interval) -> Interval:
    if any(not np.array_equal(*one) for one in (start, end, *rest)):
        raise ValueError("a slice that depends")
    axes = rest[0][0] if rest else np.arange(start[0].size)
    steps = rest[1][0] if len(rest) > 1 else np.ones(start[0].size, int)
    cut: list[slice] = [slice(None)] * x[0].ndim
    for axis, first, last, step in zip(axes, start[0], end[0], steps, strict=True):
        # An end before the start means: to the end, in reverse, which a Python slice writes as None.
        cut[int(axis)] = slice(int(first), None if last < -(1 << 31) else int(last), int(step))
    return x[0][tuple(cut)], x[1][tuple(cut)]


def _gather(node: ir.Node, x: Interval, index: Interval) -> Interval:
    if not np.array_equal(*index):
        raise ValueError("an index that depends")
    axis = attribute(node, "axis", 0)
    return np.take(x[0], index[0], axis), np.take(x[1], index[0], axis)


def _squeeze(node: ir.Node, x: np.ndarray[Any, Any], axes: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
    return np.squeeze(x, None if axes is None else tuple(int(axis) for axis in np.atleast_1d(axes)))


def _unsqueeze(node: ir.Node, x: np.ndarray[Any, Any], axes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.expand_dims(x, tuple(int(axis) for axis in np.atleast_1d(axes)))


def _reduced(function: Callable[..., np.ndarray[Any, Any]]) -> Follow:
    def one(node: ir.Node, x: np.ndarray[Any, Any], axes: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        keep = bool(attribute(node, "keepdims", 1))
        over = None if axes is None else tuple(int(axis) for axis in np.atleast_1d(axes))
        return np.asarray(function(x, axis=over, keepdims=keep))

    return _each(one)


_FOLLOW: dict[str, Follow] = {
    "Identity": _each(lambda node, x: x),
    "Squeeze": _each(_squeeze),
    "Unsqueeze": _each(_unsqueeze),
    "Concat": _each(lambda node, *parts: np.concatenate(parts, attribute(node, "axis"))),
    "Reshape": _each(lambda node, x, shape: x.reshape([int(size) for size in shape])),
    "Gather": _gather,
    "Slice": _slice,
    "Cast": _cast,
    "Add": _extremes(np.add),
    "Sub": _extremes(np.subtract),
    "Mul": _extremes(np.multiply),
    "Div": _extremes(_divide),
    "Min": _extremes(np.minimum),
    "Max": _extremes(np.maximum),
    "And": _each(lambda node, a, b: a & b),
    "Or": _each(lambda node, a, b: a | b),
    "Not": lambda node, a: (~a[1].astype(bool), ~a[0].astype(bool)),
    "Equal": _equal,
    "Less": _less,
    "LessOrEqual": _less_or_equal,
    "Greater": lambda node, a, b: _less(node, b, a),
    "GreaterOrEqual": lambda node, a, b: _less_or_equal(node, b, a),
    "Where": _where,
    "ReduceSum": _reduced(np.sum),
    "ReduceProd": _reduced(np.prod),
    "ReduceMin": _reduced(np.min),
    "ReduceMax": _reduced(np.max),
}
