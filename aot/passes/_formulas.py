"""Small formulas in graphs: polynomials of a value, and products multiplied in whatever order."""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx_ir as ir

from aot.passes._edit import dims, made_by, only_user, scalar

Polynomial = Mapping[int, float]
"""Coefficients by power."""

_OPS = ("Add", "Sub", "Mul", "Div", "Pow", "Neg")
_DEPTH = 6


def close(number: float | None, to: float, dtype: ir.DataType | None) -> bool:
    """Whether a number that a graph of that dtype holds says `to`: in the digits that exporters write, or, in FP16 and
    BF16, that the dtype has."""
    narrow = dtype is not None and dtype.bitwidth < 32
    return number is not None and math.isclose(number, to, rel_tol=4e-3 if narrow else 1e-5)


def is_float(value: ir.Value | None) -> bool:
    """Whether it is known to hold floats: integers are divided otherwise, and have no activations."""
    return value is not None and value.dtype is not None and value.dtype.is_floating_point()


def is_single(value: ir.Value | None) -> bool:
    """Whether it is known to hold floats of 32 bits at most: of more onnxruntime runs no LeakyRelu or Conv."""
    return is_float(value) and value.dtype.bitwidth <= 32  # type: ignore[union-attr]


def argument(value: ir.Value | None, wanted: Polynomial) -> ir.Value | None:
    """The x of which `value` is that polynomial; None where there is none, or it holds no floats."""
    if not is_float(value):
        return None
    seen: dict[ir.Value, None] = {}
    queue = [(value, _DEPTH)]
    while queue:
        candidate, depth = queue.pop(0)
        if candidate is None or candidate in seen or scalar(candidate) is not None:
            continue
        seen[candidate] = None
        node = made_by(candidate, *_OPS) if depth else None
        queue += [(operand, depth - 1) for operand in (node.inputs if node is not None else ())]
    return next((x for x in seen if _same(polynomial(value, x), wanted, x)), None)


def _same(found: Polynomial | None, wanted: Polynomial, x: ir.Value) -> bool:
    if found is None or found.keys() != wanted.keys():
        return False
    return all(close(found[power], wanted[power], x.dtype) for power in wanted)


def polynomial(value: ir.Value | None, x: ir.Value, depth: int = _DEPTH) -> Polynomial | None:
    """`value` as a polynomial of x, written with Add, Sub, Neg, Mul, Div by a number and Pow; None where it is none."""
    if value is x:
        return {1: 1.0}
    number = scalar(value)
    if number is not None:
        return {0: number}
    node = made_by(value, *_OPS)
    if node is None or not depth:
        return None
    parts = [polynomial(operand, x, depth - 1) for operand in node.inputs]
    a, b = parts[0], parts[-1]
    if a is None or b is None:
        return None
    if node.op_type == "Neg":
        return {power: -found for power, found in a.items()}
    if node.op_type in ("Add", "Sub"):
        sign = 1 if node.op_type == "Add" else -1
        return {power: a.get(power, 0.0) + sign * b.get(power, 0.0) for power in (*a, *b)}
    if node.op_type == "Mul":
        return _product(a, b)
    if b.keys() != {0}:
        return None
    if node.op_type == "Div":
        return {power: found / b[0] for power, found in a.items()} if b[0] else None
    if b[0] not in (2, 3):
        return None
    return _product(a, a if b[0] == 2 else _product(a, a))


def _product(a: Polynomial, b: Polynomial) -> Polynomial:
    out: dict[int, float] = {}
    for power, found in a.items():
        for other, factor in b.items():
            out[power + other] = out.get(power + other, 0.0) + found * factor
    return out


def product_of(gate: ir.Value, x: ir.Value | None, number: float) -> ir.Node | None:
    """The node that computes number·x·gate (number·gate without x), where `gate` is used for that alone, holds floats
    and what comes out has its shape."""
    if not is_float(gate):
        return None
    wanted = [gate, *([x] if x is not None else [])]
    value = gate
    for _ in range(_DEPTH):
        top = only_user(value)
        if top is None or top.domain or top.op_type not in ("Mul", "Div") or top.graph is not _graph(gate):
            return None
        constant, factors = _factors(top.outputs[0], wanted, _DEPTH)
        if close(constant, number, gate.dtype) and sorted(map(id, factors)) == sorted(map(id, wanted)):
            return top if same_rank(top.outputs[0], gate if x is None else x) else None
        value = top.outputs[0]
    return None


def other(node: ir.Node, value: ir.Value) -> ir.Value | None:
    """The operand of a binary node beside `value`."""
    return node.inputs[1 if node.inputs[0] is value else 0]


def same_rank(a: ir.Value, b: ir.Value) -> bool:
    """Whether both are known to have as many dims: a number may come with dims of 1, which would add some."""
    first, second = dims(a), dims(b)
    return first is not None and second is not None and len(first) == len(second)


def _graph(value: ir.Value) -> ir.Graph | ir.Function | None:
    producer = value.producer()
    return producer.graph if producer is not None else None


def _factors(value: ir.Value, whole: list[ir.Value], depth: int) -> tuple[float, list[ir.Value]]:
    """A product as a number and the values it is made of. Those of `whole` are taken as they are."""
    number = scalar(value)
    if number is not None:
        return number, []
    node = made_by(value, "Mul", "Div") if depth and not any(value is one for one in whole) else None
    if node is None or node.inputs[0] is None or node.inputs[1] is None:
        return 1.0, [value]
    if node.op_type == "Div":
        divisor = scalar(node.inputs[1])
        if not divisor:
            return 1.0, [value]
        constant, factors = _factors(node.inputs[0], whole, depth - 1)
        return constant / divisor, factors
    (a, left), (b, right) = (_factors(v, whole, depth - 1) for v in node.inputs if v is not None)
    return a * b, left + right
