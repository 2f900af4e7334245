"""What small tensors of integers hold and which shapes follow from them, as numbers that depend on sizes.

`Contents` walks a graph once, in order. The elements of a tensor are kept in a numpy array of objects, each an `int` or
a `Polynomial`, so that the ops that move elements are those of `_compute_views`.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import onnx_ir as ir

from aot.graph.inference import made_up, new_dim
from aot.graph.state import STATE
from aot.passes import _compute_views
from aot.passes._contents_shapes import SHAPES
from aot.passes._edit import attribute, dims, tensor
from aot.passes._kernel import KERNELS, Unfoldable
from aot.passes._symbols import Polynomial, at_least, atom, divide, opaque, quotient

assert _compute_views

Number = int | Polynomial
Array = np.ndarray[Any, Any]

SMALL = 64
"""Elements. Nothing larger is a shape, axes or the like."""

_MOVES = frozenset(
    ("Concat", "Gather", "Slice", "Squeeze", "Unsqueeze", "Reshape", "Transpose", "Split", "Expand", "Tile", "Flatten")
)
_SAME = frozenset(("Identity", "Floor", "Ceil", "Round"))
_KINDS = frozenset((ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL, ir.DataType.FLOAT, ir.DataType.DOUBLE))
_EXACT = 1 << 24
"""FP32 holds every whole number up to here, and no size that is computed in floats is larger."""


class Contents:
    """`of` what a value holds, `dims` of its shape, as far as the nodes visited so far tell."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._held: dict[ir.Value, Array | None] = {}
        self._names: dict[str, Number] = {}
        self._named: dict[Polynomial, str] = {}

    def of(self, value: ir.Value | None) -> Array | None:
        """The elements, None where they are not followed."""
        if value is None:
            return None
        if value not in self._held:
            self._held[value] = _initial(value)
        return self._held[value]

    def followed(self, value: ir.Value) -> Array | None:
        """As `of`, of what a node that was visited makes."""
        return self._held.get(value)

    def hold(self, value: ir.Value, numbers: Array) -> None:
        """Say what a new value holds."""
        self._held[value] = numbers

    def dims(self, value: ir.Value | None) -> list[Number] | None:
        """The shape; a dim that nothing is known of is a number of its own. None where the rank is not known."""
        known = dims(value)
        if known is None or value is None:
            return None
        return [
            dim if isinstance(dim, int) else self._number(dim if dim is not None else f"!{value.name}:{at}")
            for at, dim in enumerate(known)
        ]

    def _number(self, name: str) -> Number:
        known = self._names.get(name)
        return atom(name) if known is None else known

    def visit(self, node: ir.Node) -> None:
        """Follow a node, those it reads having been visited."""
        if node.domain:
            return
        self._learn(node)
        for value in node.outputs:
            if value.dtype not in _KINDS or not _small(value):
                return
        try:
            found = self._computed(node)
        except (Unfoldable, ArithmeticError, LookupError, TypeError, ValueError):
            found = None
        if found is None:
            found = [_unknown(value) for value in node.outputs]
        self._held.update(zip(node.outputs, found, strict=False))

    def _computed(self, node: ir.Node) -> list[Array | None] | None:
        op = node.op_type
        if op in ("Shape", "Size"):
            sizes = self.dims(node.inputs[0])
            if sizes is None:
                return None
            if op == "Size":
                return [_objects(math.prod(sizes))]
            return [_objects(sizes[attribute(node, "start", 0) : attribute(node, "end", len(sizes))])]
        if op not in _MOVES and op not in _SAME and op not in _ARITHMETIC:
            return None
        inputs = [self.of(value) for value in node.inputs]
        if any(held is None and value is not None for held, value in zip(inputs, node.inputs, strict=True)):
            return None
        if op in _SAME:
            return [inputs[0]]
        if op in _MOVES:
            moved = len(inputs) if op == "Concat" else 1
            arguments = [one if one is None or at < moved else integers(one) for at, one in enumerate(inputs)]
            made = KERNELS[op](node, 13, *arguments)
            return [_objects(one) for one in (made if isinstance(made, list) else [made])]
        return [_objects(_ARITHMETIC[op](node, *inputs))]

    def _learn(self, node: ir.Node) -> None:
        """Say what the dims of the output are, where inference gave them names of its own or did not know how many."""
        value = node.outputs[0] if node.outputs else None
        infer = SHAPES.get(node.op_type)
        if value is None or infer is None:
            unknown = []
        elif value.shape is None:
            found = infer(self, node)
            value.shape = None if found is None else ir.Shape([self._name(size) for size in found])
            return
        else:
            unknown = [
                (at, size.value)
                for at, size in enumerate(value.shape)
                if not isinstance(size, int) and size.value and made_up(size.value) and size.value not in self._names
            ]
        found = infer(self, node) if unknown and infer is not None else None
        if found is not None and len(found) == len(dims(value) or ()):
            for at, name in unknown:
                if found[at] != atom(name):
                    self._names.setdefault(name, found[at])
        for value in node.outputs if self._names else ():
            self._rename(value)

    def _rename(self, value: ir.Value) -> None:
        """Let a dim that is known to be another one, or a number, say so in the shape."""
        names = self._names
        if value.shape is None or not any([not isinstance(dim, int) and dim.value in names for dim in value.shape]):
            return
        if value.is_graph_output():
            return
        old = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
        new = [self._name(names[dim], dim) if isinstance(dim, str) and dim in names else dim for dim in old]
        if new != old:
            value.shape = ir.Shape(new)

    def _name(self, size: Number, name: str | None = None) -> int | str:
        """A size as a shape says it: a number, the name of the dim that it is, or the name that all have which are
        equal to it, the first time `name`, which is made up where none is given."""
        if isinstance(size, int):
            return size
        if size.name is not None:
            return size.name
        if size not in self._named:
            self._named[size] = name if name is not None else new_dim(self._model.meta[STATE])
            self._names.setdefault(self._named[size], size)
        return self._named[size]


def _small(value: ir.Value) -> bool:
    shape = value.shape
    return shape is not None and shape.is_static() and math.prod(shape.numpy()) <= SMALL


def _initial(value: ir.Value) -> Array | None:
    """Of a constant its integers; of anything else elements that are not known."""
    held = tensor(value)
    if held is None:
        return _unknown(value)
    if held.dtype not in _KINDS or held.size > SMALL:
        return None
    array = held.numpy()
    if array.dtype.kind == "f":
        whole = array.astype(np.float64)
        if not np.all((np.trunc(whole) == whole) & (np.abs(whole) <= _EXACT)):
            return None
        array = whole.astype(np.int64)
    return _objects(array.tolist())


def _unknown(value: ir.Value) -> Array | None:
    if value.dtype not in (ir.DataType.INT64, ir.DataType.INT32) or not _small(value):
        return None
    assert value.shape is not None
    shape = value.shape.numpy()
    return _objects([atom(f"?{value.name}:{at}") for at in range(math.prod(shape))]).reshape(shape)


def _objects(numbers: Any) -> Array:
    made = np.empty(np.shape(numbers) if not isinstance(numbers, Polynomial) else (), object)
    made[...] = numbers
    for at, one in np.ndenumerate(made):
        if isinstance(one, np.generic):
            made[at] = one.item()
    return made


def integers(numbers: Array) -> Array:
    """Elements that are all known. Raises Unfoldable where one is not."""
    if any(isinstance(one, Polynomial) for one in numbers.flat):
        raise Unfoldable("axes that depend on sizes")
    return numbers.astype(np.int64)


def _compare(decide: Callable[[int | None, int | None], bool | None], a: Number, b: Number) -> bool:
    """`decide` is given a lower and an upper bound of a - b."""
    difference = a - b
    low, high = at_least(difference), at_least(-difference)
    found = decide(low, None if high is None else -high)
    if found is None:
        raise Unfoldable("it depends on sizes")
    return found


def _equal(low: int | None, high: int | None) -> bool | None:
    if (low is not None and low > 0) or (high is not None and high < 0):
        return False
    return True if low == high == 0 else None


def _less(low: int | None, high: int | None) -> bool | None:
    return True if high is not None and high < 0 else False if low is not None and low >= 0 else None


def _greater(low: int | None, high: int | None) -> bool | None:
    return _less(None if high is None else -high, None if low is None else -low)


def _not(found: bool | None) -> bool | None:
    return None if found is None else not found


def _larger(a: Number, b: Number) -> Number:
    low, high = at_least(a - b), at_least(b - a)
    return a if low is not None and low >= 0 else b if high is not None and high >= 0 else opaque("max", a, b)


def _smaller(a: Number, b: Number) -> Number:
    low, high = at_least(a - b), at_least(b - a)
    return b if low is not None and low >= 0 else a if high is not None and high >= 0 else opaque("min", a, b)


def _remainder(a: Number, b: Number) -> Number:
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    return 0 if quotient(a, b) is not None else opaque("%", a, b)


def _choose(condition: Any, a: Number, b: Number) -> Number:
    if a == b:
        return a
    if isinstance(condition, Polynomial):
        raise Unfoldable("it depends on data")
    return a if condition else b


def _each(function: Callable[..., Any], count: int) -> Callable[..., Array]:
    vector = np.frompyfunc(function, count, 1)
    return lambda node, *inputs: vector(*inputs)


def _folded(function: Callable[[Any, Any], Any]) -> Callable[..., Array]:
    vector = np.frompyfunc(function, 2, 1)
    return lambda node, *inputs: functools.reduce(vector, inputs)


def _division(node: ir.Node, a: Array, b: Array) -> Any:
    if node.outputs[0].dtype in (ir.DataType.INT64, ir.DataType.INT32):
        return np.frompyfunc(divide, 2, 1)(a, b)

    def exact(a: Number, b: Number) -> Number:
        found = quotient(a, b)
        if found is None:
            raise Unfoldable("a fraction")
        return found

    return np.frompyfunc(exact, 2, 1)(a, b)


def _reduced(function: Callable[[Iterable[Any]], Any]) -> Callable[..., Array]:
    def reduce(node: ir.Node, x: Array, axes: Array | None = None) -> Array:
        listed = attribute(node, "axes") if axes is None else integers(axes).tolist()
        if x.ndim != 1 or list(listed or (0,)) not in ([0], [-1]) or attribute(node, "noop_with_empty_axes", 0):
            raise Unfoldable("a reduction of something other than a list")
        return _objects([function(x)] if attribute(node, "keepdims", 1) else function(x))

    return reduce


def _cast(node: ir.Node, x: Array) -> Any:
    if node.outputs[0].dtype == ir.DataType.BOOL:
        return np.frompyfunc(lambda one: not _compare(_equal, one, 0), 1, 1)(x)
    return np.frompyfunc(lambda one: int(one) if isinstance(one, bool) else one, 1, 1)(x)


_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "Cast": _cast,
    "Add": _each(operator.add, 2),
    "Sub": _each(operator.sub, 2),
    "Mul": _each(operator.mul, 2),
    "Neg": _each(operator.neg, 1),
    "Div": _division,
    "Mod": _each(_remainder, 2),
    "Max": _folded(_larger),
    "Min": _folded(_smaller),
    "Equal": _each(functools.partial(_compare, _equal), 2),
    "Less": _each(functools.partial(_compare, _less), 2),
    "Greater": _each(functools.partial(_compare, _greater), 2),
    "GreaterOrEqual": _each(functools.partial(_compare, lambda low, high: _not(_less(low, high))), 2),
    "LessOrEqual": _each(functools.partial(_compare, lambda low, high: _not(_greater(low, high))), 2),
    "Not": _each(operator.not_, 1),
    "And": _each(lambda a, b: a and b, 2),
    "Or": _each(lambda a, b: a or b, 2),
    "Where": _each(_choose, 3),
    "ReduceProd": _reduced(lambda x: functools.reduce(operator.mul, x, 1)),
    "ReduceSum": _reduced(sum),
    "ReduceMax": _reduced(lambda x: functools.reduce(_larger, x)),
    "ReduceMin": _reduced(lambda x: functools.reduce(_smaller, x)),
}
