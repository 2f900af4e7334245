"""Constants that FP16 cannot hold: attention masks are clamped, bounds are clamped, the rest keeps its reader wide."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from aot.precision.formats import Float
from aot.precision.reading import MOVES, constant, consumers, figure, is_float

# Two masks of this size still add up to a finite FP16 number, with 5,504 to spare for the scores;
# exp(-30000) is 0 in every format.
MASK = 30000.0
# A constant this large that ends in a softmax is a mask even where FP16 holds it; scores stay far below.
_MASK_FROM = 4096.0
# A mask may pass these on its way ...
_PATH = MOVES | {"Add", "Sub", "Mul", "Where", "Min", "Max", "Cast"}
# ... to one of these, where only the order of values or their exponential counts ...
_SINKS = {"Softmax", "LogSoftmax", "Attention", "ArgMax", "ArgMin", "TopK", "ReduceMax", "Exp", "Sigmoid"}
# ... and these may look on.
_WATCHERS = {"IsNaN", "IsInf", "Shape", "Equal", "Greater", "Less"}
# The largest error that rounding a constant may make: an eps of 1e-7 is off by 19 % in FP16, one of 1e-6 by 1.4 %.
_ROUNDING = 0.01


@dataclass
class Constants:
    """What was found.

    clamp: initializers and the magnitude they are clamped to. masked: values that carry a mask, whose
    observed magnitude therefore says nothing. wide: nodes that must read a constant in FP32, and why.
    tiny: of those, the ones whose constant vanishes and therefore matters only further down (an eps).
    """

    clamp: dict[ir.Value, float] = field(default_factory=dict)
    masked: set[ir.Value] = field(default_factory=set)
    wide: dict[ir.Node, str] = field(default_factory=dict)
    tiny: list[ir.Node] = field(default_factory=list)


def examine(graph: ir.Graph, compute: Float) -> Constants:
    """Look at every FLOAT initializer of the graph."""
    found = Constants()
    for value in graph.initializers.values():
        array = constant(value)
        if array is None or not is_float(value) or array.size == 0:
            continue
        largest = max(float(array.max()), -float(array.min()))  # without a copy of the weight
        if largest > compute.top or (largest > _MASK_FROM and _mask_path(value)):
            _large(value, array, largest, compute, found)
        elif largest > 0 and _rounding(largest, compute) > _ROUNDING:
            for node in consumers(value):
                found.wide.setdefault(
                    node,
                    f"the constant {figure(largest)} it reads is {_rounding(largest, compute):.0%} off in "
                    f"{compute.name.upper()}, whose normal values start at {figure(compute.tiny)}",
                )
                found.tiny.append(node)
    return found


def _rounding(value: float, compute: Float) -> float:
    rounded = float(np.asarray(value, np.float32).astype(compute.numpy).astype(np.float32))
    return abs(rounded - value) / value


def _large(value: ir.Value, array: np.ndarray, largest: float, compute: Float, found: Constants) -> None:
    carried = _mask_path(value)
    if carried is not None:
        found.masked |= carried
        if bool((np.isfinite(array) & (np.abs(array) > MASK)).any()):
            found.clamp[value] = MASK
        return
    if all(_is_bound(node, value) for node in consumers(value)):
        found.clamp[value] = compute.top
        return
    for node in consumers(value):
        found.wide.setdefault(
            node, f"the constant {figure(largest)} it reads exceeds {compute.name.upper()}'s {compute.top:g}"
        )


def _mask_path(value: ir.Value) -> set[ir.Value] | None:
    """The values a mask passes, from the constant to softmax; None where it also goes elsewhere."""
    seen = {value}
    queue = [value]
    arrived = False
    while queue:
        current = queue.pop()
        if current.is_graph_output():
            return None
        for node in consumers(current):
            if node.op_type in _SINKS:
                arrived = True
            elif node.op_type in _PATH and node.graph is value.graph:
                fresh = [v for v in node.outputs if is_float(v) and v not in seen]
                if not any(is_float(v) for v in node.outputs):
                    return None
                seen.update(fresh)
                queue.extend(fresh)
            elif node.op_type not in _WATCHERS:
                return None
    return seen if arrived else None


def _is_bound(node: ir.Node, value: ir.Value) -> bool:
    """Whether the node only limits something by the value: clamping the limit changes no result that FP16 can hold."""
    return node.op_type == "Clip" and node.inputs[0] is not value
