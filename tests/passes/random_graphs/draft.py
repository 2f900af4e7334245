"""A graph in the making: values that know their shape at several sizes of the dynamic dims, and the nodes between."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
Size = tuple[int, ...]
"""What one dim is at each of the sizes a graph is run at."""
Shape = tuple[Size, ...]

DIMS: dict[str, Size] = {"A": (2, 5, 1), "B": (3, 1, 4)}
"""The dynamic dims. Each is 1 somewhere, for an op that broadcasts only there must stay."""
RUNS = len(DIMS["A"])

FLOATS = ("float16", "float32", "float64")
INTEGERS = ("int32", "int64")
_LARGEST = {"float16": 60.0, "float32": 300.0, "float64": 300.0}
"""Values beyond are read only by what makes them small again."""
_ELEMENTS = 6000
_SUFFIXES = ("_folded", "_shape", "_axes", "_scale", "_bias", "_2", "_1", "_0")
"""What passes are likely to call their own values."""


def fixed(size: int) -> Size:
    """A dim of one size."""
    return (size,) * RUNS


def is_fixed(size: Size) -> bool:
    """Whether a dim has one size in every run."""
    return len(set(size)) == 1


ONE = fixed(1)


def times(*sizes: Size) -> Size:
    """The product of dims."""
    return tuple(math.prod(run) for run in zip(*sizes, strict=True)) if sizes else ONE


def broadcast(*shapes: Shape) -> Shape | None:
    """The shape that shapes broadcast to at every size, by the same axes; None where they do not."""
    rank = max(map(len, shapes))
    out = [ONE] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, rank - len(shape)):
            if size != ONE and out[axis] not in (ONE, size):
                return None
            out[axis] = out[axis] if size == ONE else size
    return tuple(out)


@dataclass(frozen=True)
class Value:
    """A value of the graph.

    bound: what no element exceeds in magnitude. exact: every right rewrite gives the same bits, so that a rounding, a
    comparison or an index may hang on it. finite: it holds no NaN and no infinity. data: its elements at each size,
    for the integers that shapes are made of.
    """

    name: str
    dtype: str
    shape: Shape
    bound: float = 3.0
    exact: bool = True
    finite: bool = True
    data: tuple[Size, ...] | None = None

    @property
    def rank(self) -> int:
        """The number of its dims."""
        return len(self.shape)

    @property
    def is_float(self) -> bool:
        """Whether it is of a floating-point type."""
        return self.dtype in FLOATS


class Draft:
    """A graph, or a subgraph, to which steps add nodes."""

    def __init__(self, rng: random.Random, opset: int, main: str, outer: Draft | None = None) -> None:
        self.rng, self.opset, self.float, self.outer = rng, opset, main, outer
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[Value] = []
        self.values: list[Value] = []
        self.constants: list[Value] = []
        self._taken: set[str] = outer._taken if outer else set()

    # Drawing.

    def chance(self, probability: float) -> bool:
        """True with that probability."""
        return self.rng.random() < probability

    def choose(self, *options: Any) -> Any:
        """One of the options."""
        return self.rng.choice(options)

    def near(self, number: float) -> float:
        """Mostly the number that a pass looks for, sometimes one a little off."""
        return number if self.chance(0.9) else number * self.choose(0.5, 1.1, -1.0)

    def visible(self) -> list[Value]:
        """What a node may read, oldest first."""
        return (self.outer.visible() if self.outer else []) + self.values

    def pick(self, where: Callable[[Value], bool] = lambda v: True, *, wild: bool = False) -> Value | None:
        """A value that `where` holds of, mostly a late one; small enough in numbers and elements unless `wild`."""
        found = [
            v
            for v in self.visible()
            if where(v)
            and (wild or not v.is_float or (v.finite and v.bound <= _LARGEST[v.dtype]))
            and max(math.prod(s[run] for s in v.shape) for run in range(RUNS)) <= _ELEMENTS
        ]
        if not found:
            return None
        return found[-1 - min(int(self.rng.expovariate(0.25)), len(found) - 1)]

    def pick_float(self, where: Callable[[Value], bool] = lambda v: True) -> Value | None:
        """A floating-point value, mostly of the graph's main type."""
        main = self.chance(0.9)
        return self.pick(lambda v: v.is_float and (v.dtype == self.float or not main) and where(v))

    # Making.

    def name(self, base: str) -> str:
        """A name not taken yet, sometimes one that a pass would like to have."""
        if self.values and self.chance(0.02):
            base = self.rng.choice(self.values).name + self.rng.choice(_SUFFIXES)
        name, count = base, len(self._taken)
        while name in self._taken:
            name, count = f"{base}{count}", count + 1
        self._taken.add(name)
        return name

    def input(self, dtype: str, dims: Sequence[int | str]) -> Value:
        """A new input of the graph."""
        shape = tuple(DIMS[d] if isinstance(d, str) else fixed(d) for d in dims)
        value = Value(self.name("x"), dtype, shape, bound=1.0 if dtype == "bool" else 3.0)
        self.inputs.append(value)
        self.values.append(value)
        return value

    def constant(self, array: Array | float | Sequence[Any], dtype: str | None = None) -> Value:
        """An initializer, or a Constant node; `dtype` is the main float type unless given."""
        held = np.asarray(array, dtype or (self.float if not isinstance(array, np.ndarray) else array.dtype))
        data = tuple(fixed(int(v)) for v in held.reshape(-1)) if held.dtype == np.int64 and held.size <= 64 else None
        finite = held.astype(np.float64)[np.isfinite(held.astype(np.float64))]
        bound = float(np.abs(finite).max()) if finite.size else 0.0
        shape = tuple(map(fixed, held.shape))
        value = Value(self.name("c"), held.dtype.name, shape, bound, finite=finite.size == held.size, data=data)
        tensor = numpy_helper.from_array(held, value.name)
        if self.chance(0.3):
            self.nodes.append(helper.make_node("Constant", [], [value.name], value=tensor))
        else:
            self.initializers.append(tensor)
        self.constants.append(value)
        return value

    def weight(self, *dims: int, scale: float = 1.0, dtype: str | None = None) -> Value:
        """A random constant, its elements within 2 · scale."""
        drawn = np.random.default_rng(self.rng.getrandbits(32)).normal(size=dims) * scale
        return self.constant(np.asarray(drawn.clip(-2 * scale, 2 * scale), dtype or self.float))

    def add(
        self,
        op: str,
        inputs: Sequence[Value | None],
        shape: Shape,
        *,
        dtype: str | None = None,
        bound: float | None = None,
        exact: bool = False,
        finite: bool = True,
        data: tuple[Size, ...] | None = None,
        **attributes: Any,
    ) -> Value:
        """A node with one output. exact: it is where its inputs are. bound: by default the largest of its inputs'."""
        given = [v for v in inputs if v is not None]
        value = Value(
            self.name("v"),
            dtype or given[0].dtype,
            shape,
            max((v.bound for v in given), default=1.0) if bound is None else bound,
            (exact and all(v.exact for v in given)) or (dtype or given[0].dtype) not in FLOATS,
            finite and all(v.finite for v in given),
            data,
        )
        self.node(op, inputs, [value], **attributes)
        return value

    def node(self, op: str, inputs: Sequence[Value | None], outputs: Sequence[Value], **attributes: Any) -> None:
        """A node that makes `outputs`, which are readable from now on."""
        names = [v.name if v is not None else "" for v in inputs]
        while names and not names[-1]:
            names.pop()
        self.nodes.append(
            helper.make_node(op, names, [v.name for v in outputs], f"n{len(self._taken)}_{op}", **attributes)
        )
        self.values.extend(outputs)

    def binary(self, op: str, a: Value, b: Value, *, swap: bool = True, **known: Any) -> Value:
        """A broadcasting op; the operands of Add and Mul come in either order."""
        shape = broadcast(a.shape, b.shape)
        assert shape is not None
        if "bound" not in known:
            known["bound"] = a.bound * b.bound if op == "Mul" else a.bound + b.bound
        if swap and op in ("Add", "Mul") and self.chance(0.4):
            a, b = b, a
        return self.add(op, [a, b], shape, **known)

    def number(self, value: float, like: Value) -> Value:
        """A constant of one element, of a rank that broadcasts without changing `like`."""
        rank = self.choose(0, 0, 0, 1, self.rng.randint(0, like.rank))
        return self.constant(np.full([1] * min(rank, like.rank), value, like.dtype))

    def axes(self, op: str, x: Value, axes: Sequence[int], since: int) -> tuple[list[Value], dict[str, Any]]:
        """(inputs, attributes) of an op whose axes are an input from opset `since` on; some counted from the end."""
        given = [a - x.rank if self.chance(0.3) else a for a in axes]
        if self.opset >= since:
            return [x, self.constant(given, "int64")], {}
        return [x], {"axes": given}

    @property
    def ops(self) -> int:
        """Its nodes that compute something."""
        return sum(node.op_type != "Constant" for node in self.nodes)

    def attempt(self, step: Callable[[Draft], None], most: int) -> None:
        """Take a step, and take it back where it makes the graph have more than `most` ops."""
        lists: tuple[list[Any], ...] = (self.nodes, self.initializers, self.values, self.constants)
        before = [len(one) for one in lists]
        step(self)
        if self.ops > most:
            for one, count in zip(lists, before, strict=True):
                del one[count:]

    # Writing.

    def graph(self, name: str, outputs: Iterable[Value]) -> onnx.GraphProto:
        """The graph in ONNX's form."""
        return helper.make_graph(
            self.nodes, name, list(map(info, self.inputs)), list(map(info, outputs)), self.initializers
        )


def info(value: Value) -> onnx.ValueInfoProto:
    """Its type, dynamic dims by name, computed ones not named."""
    names = {size: name for name, size in DIMS.items()}
    dims = [size[0] if is_fixed(size) else names.get(size) for size in value.shape]
    return helper.make_tensor_value_info(value.name, helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype)), dims)


def onnx_type(dtype: str) -> int:
    """The number ONNX has for a numpy dtype."""
    return int(getattr(TensorProto, {"float32": "FLOAT", "float64": "DOUBLE"}.get(dtype, dtype.upper())))
