"""Computations whose result a rounding of their input changes beyond measure, by what was observed.

A float holds a value to a share of its magnitude. Where the value itself is what counts, as in exp(x), sin(x) or
floor(x), one of 1,000 that is off by its rounding, 0.5 in FP16, changes the result by half; where a value is divided
by, or its logarithm taken, one below the smallest normal number has lost its bits or is 0. Model Optimizer's AutoCast
keeps all that exceeds 512 in FP32, PyTorch's autocast every exp and log: too much where the error stays a share of the
result, and too little for BF16.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import onnx_ir as ir

from aot.precision.cancellation import SHARE
from aot.precision.formats import Float
from aot.precision.reading import MOVES, Observed, attribute, computed, constant, figure, is_float

# exp(x - max x): only values near the highest one count. A bare Exp of large values overflows, of low ones is 0.
_SOFTMAX = {"Softmax", "LogSoftmax"}
# Functions of the value itself and not of its ratio to another.
_ABSOLUTE = {"Sin", "Cos", "Tan", "Floor", "Ceil", "Round", "Mod"}
# What stands between the rounding and the function and is rounded like it.
_ON_THE_WAY = MOVES | {"Add", "Sub", "Mul", "Div", "Where", "Min", "Max", "Neg", "Clip"}


def absolute(graph: ir.Graph, observed: Observed, masked: Collection[ir.Value], compute: Float) -> dict[ir.Node, str]:
    """Such functions of values so large that one rounding comes to more than `SHARE` of 1, and what computes these."""
    limit = SHARE * compute.exact
    found: dict[ir.Node, str] = {}
    for node in graph:
        if node.op_type not in _ABSOLUTE | _SOFTMAX and not _to_integer(node):
            continue
        size = observed.high if node.op_type in _SOFTMAX else observed.of
        chain = list(_rounded(node.inputs[0], size, masked, limit))
        if chain:
            amax = max(size(v) or 0.0 for v in chain)
            reason = f"{node.op_type} of values up to {figure(amax)}, which {compute.name.upper()} holds to "
            reason += figure(amax / compute.exact)
            for member in (node, *(p for v in chain if (p := v.producer()) is not None)):
                found.setdefault(member, reason)
    return found


def _to_integer(node: ir.Node) -> bool:
    return node.op_type == "Cast" and ir.DataType(attribute(node, "to", 1)).is_integer()


def _rounded(
    value: ir.Value | None,
    size: Callable[[ir.Value | None], float | None],
    masked: Collection[ir.Value],
    limit: float,
) -> Iterator[ir.Value]:
    """The value and those it is made of, as far back as they are that large. A mask's size says nothing of the scores
    that it is added to, so it is looked through."""
    if value is None or not is_float(value) or constant(value) is not None:
        return
    if value not in masked:
        if (size(value) or 0.0) <= limit:
            return
        yield value
    node = value.producer()
    if node is not None and node.op_type in _ON_THE_WAY:
        for source in computed(node):
            yield from _rounded(source, size, masked, limit)


def vanishing(graph: ir.Graph, observed: Observed, compute: Float) -> dict[ir.Node, str]:
    """Divisions by, and logarithms of, values that come below the smallest normal number, and what computes these."""
    found: dict[ir.Node, str] = {}
    for node in graph:
        value = _must_not_vanish(node)
        least = observed.least(value)
        if value is None or least is None or least >= compute.tiny or not observed.of(value):
            continue
        reason = f"{node.op_type} of {value.name}, which came down to {figure(least)}; {compute.name.upper()} loses "
        reason += f"values below {figure(compute.tiny)}"
        found.setdefault(node, reason)
        while value is not None and (least := observed.least(value)) is not None and least < compute.tiny:
            producer = value.producer()
            if producer is None:
                break
            found.setdefault(producer, reason)
            value = next(iter(computed(producer)), None)
    return found


def _must_not_vanish(node: ir.Node) -> ir.Value | None:
    """The input that a node divides by or takes the logarithm of."""
    if node.op_type in {"Log", "Reciprocal"}:
        return node.inputs[0]
    if node.op_type == "Div":
        return node.inputs[1]
    exponent = constant(node.inputs[1]) if node.op_type == "Pow" else None
    return node.inputs[0] if exponent is not None and bool((exponent < 0).all()) else None
