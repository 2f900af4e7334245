"""Ops that compute the same with their axes in another order: what they are told then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from aot.passes._edit import array, attribute, dims

Array = np.ndarray[Any, Any]

UNARY = frozenset(
    (
        *("Abs", "Cast", "Ceil", "Clip", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish"),
        *("Identity", "IsInf", "IsNaN", "LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round"),
        *("Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Tanh", "ThresholdedRelu", "Swish"),
    )
)
BROADCAST = frozenset(
    (
        *("Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Mod"),
        *("Mul", "Or", "Pow", "PRelu", "Sub", "Sum", "Where", "Xor"),
    )
)
REDUCTIONS = frozenset(
    f"Reduce{kind}" for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
)
# Along one axis, which an attribute names.
ALONG = frozenset({"Concat", "Softmax", "LogSoftmax", "Split", "Hardmax"})
MOVABLE = UNARY | BROADCAST | REDUCTIONS | ALONG | {"Slice", "Pad", "MatMul", "LayerNormalization"}
"""All that `moved` knows."""


class Moved(NamedTuple):
    """An op told of its axes in another order. attributes: in place of its own. inputs: constants in place of its own,
    by index. same: the result is as before, for the axes that were moved are gone."""

    attributes: Mapping[str, int | list[int]] = MappingProxyType({})
    inputs: Mapping[int, Array] = MappingProxyType({})
    same: bool = False


def moved(node: ir.Node, order: Sequence[int], opset: int) -> Moved | None:
    """How `node` computes its result with its operands before a Transpose by `order`, so that the result is before it,
    too; None where it cannot. Operands of lower rank and constants are for the caller to look after.
    """
    op, rank = node.op_type, len(order)
    if node.domain or (op not in REDUCTIONS and any(_rank(value) not in (rank, None) for value in node.outputs)):
        return None
    if op in UNARY or op in BROADCAST:
        return Moved()
    if op in ALONG:
        default = 0 if op == "Split" else -1
        if op in ("Softmax", "LogSoftmax", "Hardmax") and opset < 13:
            return None  # It flattens all that comes after the axis.
        return Moved({"axis": order[attribute(node, "axis", default) % rank]})
    if op in REDUCTIONS:
        return _reduction(node, order)
    if op == "Slice":
        return _slice(node, order)
    if op == "Pad":
        return _pad(node, order)
    if op == "MatMul":
        weight = dims(node.inputs[1])
        fits = order[-1] == rank - 1 and weight is not None and len(weight) == 2 and rank > 2
        return Moved() if fits else None
    if op == "LayerNormalization":
        fits = order[-1] == rank - 1 and attribute(node, "axis", -1) in (-1, rank - 1)
        return Moved() if fits and len([value for value in node.outputs if value.uses()]) < 2 else None
    return None


def _rank(value: ir.Value) -> int | None:
    return None if value.shape is None else len(value.shape)


def _reduction(node: ir.Node, order: Sequence[int]) -> Moved | None:
    given = node.inputs[1] if len(node.inputs) > 1 else None
    axes = array(given) if given is not None else np.array(attribute(node, "axes", ()))
    if axes is None or not axes.size:
        return None
    rank = len(order)
    gone = {int(axis) % rank for axis in axes.reshape(-1)}
    new = [order[axis] for axis in sorted(gone)]
    left = [order[axis] for axis in range(rank) if axis not in gone]
    if not attribute(node, "keepdims", 1) and left != sorted(left):
        return None
    inputs = {1: np.array(new, np.int64)} if given is not None else {}
    return Moved({} if inputs else {"axes": new}, inputs, same=not attribute(node, "keepdims", 1))


def _slice(node: ir.Node, order: Sequence[int]) -> Moved | None:
    axes = array(node.inputs[3]) if len(node.inputs) > 3 else None
    if len(node.inputs) < 3 or (axes is None and len(node.inputs) > 3):
        return None
    count = (dims(node.inputs[1]) or (None,))[0]
    if axes is None:
        axes = np.arange(count) if isinstance(count, int) else None
    return None if axes is None else Moved({}, {3: np.array([order[int(axis)] for axis in axes.reshape(-1)], np.int64)})


def _pad(node: ir.Node, order: Sequence[int]) -> Moved | None:
    pads = array(node.inputs[1]) if len(node.inputs) > 1 else None
    if pads is None or len(node.inputs) > 3 or pads.size != 2 * len(order):
        return None
    new = np.zeros_like(pads)
    for side in range(2):
        for axis, was in enumerate(order):
            new[side * len(order) + was] = pads[side * len(order) + axis]
    return Moved({}, {1: new})


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    """The order that undoes one."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def before(data: Array, order: Sequence[int]) -> Array | None:
    """A constant that is broadcast against a transposed operand, as it is broadcast before the Transpose.

    It is `data` itself where the axes that it has stay in their places; None where it has more axes than the operand.
    """
    rank = len(order)
    if data.ndim > rank:
        return None
    if all(order[axis] == axis for axis in range(rank - data.ndim, rank)):
        return data
    full = data.reshape((1,) * (rank - data.ndim) + data.shape)
    return full.transpose(inverse(order))
