"""Reading a graph: constants, ranges, and the kinds of nodes the rules speak of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import onnx_ir as ir

# Nodes that move values without changing any; the first input is the data (every input, for Concat).
MOVES = frozenset(
    {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Identity", "Slice", "Expand", "Flatten", "Tile", "Split"}
    | {"Gather", "GatherElements", "GatherND", "DepthToSpace", "SpaceToDepth", "Concat"}
)
# Arithmetic that costs little and can follow its neighbours' dtype.
ELEMENTWISE = frozenset(
    {"Add", "Sub", "Mul", "Div", "Mod", "Neg", "Abs", "Sign", "Sqrt", "Reciprocal", "Exp", "Log", "Pow", "Erf"}
    | {"Relu", "Clip", "Min", "Max", "Where", "Floor", "Ceil", "Round", "Tanh", "Sigmoid", "Sin", "Cos"}
)


def is_float(value: ir.Value | None) -> bool:
    """Whether the value is a FLOAT (32-bit) tensor."""
    return value is not None and value.dtype == ir.DataType.FLOAT


def constant(value: ir.Value | None) -> np.ndarray | None:
    """The array of an initializer, memory-mapped where it is external; None for anything computed."""
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    return value.const_value.numpy()


def is_constant(value: ir.Value | None) -> bool:
    """Whether the value is an initializer that no caller can override."""
    return value is not None and value.const_value is not None and not value.is_graph_input()


def data_inputs(node: ir.Node) -> Iterable[ir.Value]:
    """The inputs of a moving node that carry the data."""
    inputs = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    return (value for value in inputs if value is not None)


def computed(node: ir.Node) -> list[ir.Value]:
    """The float inputs that are not constants."""
    return [v for v in node.inputs if v is not None and is_float(v) and not is_constant(v)]


def consumers(value: ir.Value) -> list[ir.Node]:
    """Every node that reads the value, once each, those in subgraphs included."""
    return list(dict.fromkeys(value.consumers()))


def has_subgraph(node: ir.Node) -> bool:
    """Whether the node carries a graph (If, Loop, Scan)."""
    return any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values())


def integers(value: ir.Value | None) -> list[int] | None:
    """A constant integer tensor as a list; None where it is computed or absent."""
    array = constant(value)
    return None if array is None else [int(x) for x in array.reshape(-1)]


def attribute(node: ir.Node, name: str, default: int) -> int:
    """An integer attribute."""
    found = node.attributes.get(name)
    return default if found is None else found.as_int()


class Observed:
    """The magnitudes of a value: observed, or known from what it was made of.

    amax: the largest magnitude by name. spans: lowest and highest value by name, where they are known.
    """

    def __init__(self, amax: Mapping[str, float], spans: Mapping[str, tuple[float, float]] | None = None) -> None:
        self._amax = amax
        self._spans = spans or {}

    def __bool__(self) -> bool:
        return bool(self._amax)

    def least(self, value: ir.Value | None) -> float | None:
        """The smallest magnitude; None where it is unknown or values of both signs were seen."""
        low, high = self._spans.get(str(value.name) if value is not None else "", (-1.0, 1.0))
        return low if low >= 0 else -high if high <= 0 else None

    def high(self, value: ir.Value | None) -> float | None:
        """The highest value, 0 where all are negative; the largest magnitude where no more is known."""
        span = self._spans.get(str(value.name) if value is not None else "")
        return self.of(value) if span is None else max(span[1], 0.0)

    def of(self, value: ir.Value | None) -> float | None:
        """The largest magnitude, following values that were only moved to where they were observed; None if unknown."""
        while value is not None:
            name = value.name or ""
            if name in self._amax:
                return self._amax[name]
            node = value.producer()
            if node is None or node.op_type not in MOVES:
                return None
            if node.op_type == "Concat":
                parts = [self.of(v) for v in node.inputs]
                return None if None in parts else max(p for p in parts if p is not None)
            value = node.inputs[0]
        return None


def forward(starts: Iterable[ir.Node], through: Callable[[ir.Node], bool]) -> list[ir.Node]:
    """The starts and all nodes reached from them over nodes that `through` lets pass, the last ones included."""
    seen = dict.fromkeys(starts)
    queue = list(seen)
    while queue:
        node = queue.pop()
        for value in node.outputs:
            for user in consumers(value):
                if user not in seen and through(user):
                    seen[user] = None
                    queue.append(user)
    return list(seen)


def figure(number: float) -> str:
    """A number for a message: three significant digits."""
    return f"{number:.3g}"
