"""Computations that are narrow in no compute dtype: norm statistics, long sums, integers in floats, angles."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from aot.precision.formats import Float
from aot.precision.reading import (
    ELEMENTWISE,
    MOVES,
    Observed,
    attribute,
    computed,
    consumers,
    figure,
    integers,
    is_constant,
    is_float,
)

_STATISTICS = {"ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL2", "ReduceL1"}
_SQUARES = {"ReduceSumSquare", "ReduceL2"}
_ON_THE_WAY = MOVES | {"Add", "Sub", "Max", "Clip", "Sqrt", "Pow", "Cast", "Where"}
_NORMS = {
    "LayerNormalization",
    "InstanceNormalization",
    "GroupNormalization",
    "RMSNormalization",
    "LpNormalization",
    "MeanVarianceNormalization",
}
_ANGLES = {"Sin", "Cos"}
# A sum of this many terms loses about four of FP16's eleven bits when it is accumulated in FP16.
LONG_SUM = 1024


def denominators(starts: Iterable[ir.Node]) -> dict[ir.Node, ir.Node]:
    """From each start, the nodes up to the division that uses its result, mapped to that start.

    The path runs over Add, Max, Clip, Sqrt and moves to a Div (as divisor), a Reciprocal and the product after
    it, or a Log. Empty for a start that reaches none.
    """
    found: dict[ir.Node, ir.Node] = {}
    for start in starts:
        path = _to_division(start, set())
        if path:
            for node in path:
                found.setdefault(node, start)
    return found


def _to_division(node: ir.Node, seen: set[ir.Node]) -> list[ir.Node]:
    seen.add(node)
    if node.op_type in {"Div", "Log"}:
        return [node]
    if node.op_type == "Reciprocal":
        return [node, *(n for v in node.outputs for n in consumers(v) if n.op_type == "Mul")]
    path: list[ir.Node] = []
    for value in node.outputs:
        for user in consumers(value):
            if user in seen or user.graph is not node.graph:
                continue
            divides = user.op_type == "Div" and len(user.inputs) > 1 and user.inputs[1] is value
            if divides or user.op_type in _ON_THE_WAY or user.op_type in {"Reciprocal", "Log"}:
                path += _to_division(user, seen)
    return [node, *path] if path else []


def norm_statistics(graph: ir.Graph) -> dict[ir.Node, str]:
    """Hand-written norms: the square, its mean, eps, the root and the division.

    The square of 256 leaves FP16, the square of 1e-4 vanishes in it, and an eps of 1e-6 has three bits left.
    """
    found: dict[ir.Node, str] = {}
    for node in graph:
        if node.op_type not in _STATISTICS:
            continue
        path = list(denominators([node]))
        rooted = any(n.op_type in {"Sqrt", "Pow"} for n in path)
        if node.op_type not in _SQUARES and not rooted:
            continue
        squares = [p for v in computed(node) if (p := v.producer()) is not None and _is_square(p)]
        if node.op_type not in _SQUARES and not squares:
            continue
        for member in [*squares, node, *path]:
            found.setdefault(member, f"part of the norm statistics around {node.name}: a sum of squares")
    return found


def _is_square(node: ir.Node) -> bool:
    return node.op_type == "Pow" or (node.op_type == "Mul" and node.inputs[0] is node.inputs[1])


def fused_norms(graph: ir.Graph, observed: Observed, compute: Float) -> dict[ir.Node, str]:
    """LayerNormalization and its kin, where the square of the input leaves the compute dtype's range.

    Elsewhere they stay narrow: TensorRT documents that it computes the statistics in FP32 by itself (and
    `stash_type` says so too), so no margin is added, and a cast in front of each would break its fusions.
    """
    found: dict[ir.Node, str] = {}
    for node in graph:
        amax = observed.of(node.inputs[0]) if node.op_type in _NORMS else None
        if amax is not None and amax * amax > compute.top:
            found[node] = f"the square of its input, {figure(amax)}, exceeds {compute.name.upper()}'s {compute.top:g}"
    return found


def long_sums(graph: ir.Graph) -> dict[ir.Node, str]:
    """ReduceSum over a dynamic axis or over more than `LONG_SUM` values: calibration cannot bound its length."""
    found: dict[ir.Node, str] = {}
    for node in graph:
        if node.op_type != "ReduceSum" or not is_float(node.inputs[0]):
            continue
        shape = node.inputs[0].shape if node.inputs[0] is not None else None
        axes = integers(node.inputs[1]) if len(node.inputs) > 1 else None
        if shape is None:
            continue
        count = 1
        for axis in axes if axes else range(len(shape)):
            size = shape[axis]
            if not isinstance(size, int):
                found[node] = f"sums over the dynamic axis {axis} ({size})"
                break
            count *= size
        else:
            if count > LONG_SUM:
                found[node] = f"sums {count} values"
    return found


def integers_in_floats(
    graph: ir.Graph, observed: Observed, masked: set[ir.Value], compute: Float
) -> dict[ir.Node, str]:
    """Positions and counts held in floats: exact only up to 2^(mantissa + 1), and angles need more than that.

    A value counts as such where it is computed from integer tensors and constants alone (a table lookup is not).
    """
    derived: dict[ir.Value, None] = {}
    for node in graph:
        if node.op_type in {"Gather", "GatherElements", "GatherND"} and is_constant(node.inputs[0]):
            continue
        if node.op_type not in MOVES | ELEMENTWISE | {"Cast", "Range", "CumSum", "MatMul"}:
            continue
        floats = computed(node)
        if all(v in derived for v in floats) and (floats or node.op_type in {"Cast", "Range"}):
            derived.update((v, None) for v in node.outputs if is_float(v))

    found: dict[ir.Node, str] = {}
    sinks: list[ir.Node] = []
    for node in graph:
        touched = [v for v in (*node.inputs, *node.outputs) if v in derived and v not in masked]
        if node.op_type in {"CumSum", "Range"} and (touched or any(is_float(v) for v in node.outputs)):
            found[node] = "counts; every step must be exact"
        amax = max((observed.of(v) or 0.0 for v in touched), default=0.0)
        if amax > compute.exact:
            found[node] = (
                f"carries integers up to {figure(amax)}, and {compute.name.upper()} is exact only to {compute.exact}"
            )
        elif touched and (node.op_type in _ANGLES or _casts_to_integer(node)):
            sinks.append(node)
    queue = list(sinks)
    while queue:
        node = queue.pop()
        found.setdefault(node, "an angle or an index computed from integers")
        for value in node.inputs:
            producer = value.producer() if value is not None and value in derived else None
            if producer is not None and producer not in found:
                queue.append(producer)
    return found


def _casts_to_integer(node: ir.Node) -> bool:
    return node.op_type == "Cast" and ir.DataType(attribute(node, "to", 1)).is_integer()
