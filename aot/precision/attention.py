"""Attention as two MatMuls around a Softmax: what a kernel takes whole, and is quantized whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from aot.precision.reading import MOVES, computed, consumers, is_float

# Between the scores and the softmax: the scale, a cap, the mask.
_SCORES = MOVES | {"Add", "Sub", "Mul", "Div", "Where", "Cast", "Tanh", "Clip", "Min", "Max"}
# Between the softmax and the values: a NaN guard, a mask that is multiplied.
_WEIGHTS = MOVES | {"Cast", "Where", "Mul"}


@dataclass(frozen=True)
class Attention:
    """scores: the MatMul of queries and keys. mix: the MatMul of the softmax's output and the values."""

    scores: ir.Node
    softmax: ir.Node
    mix: ir.Node


def attentions(graph: ir.Graph) -> list[Attention]:
    """Every Softmax with a MatMul of two activations on either side, in graph order."""
    found = []
    for node in graph:
        if node.op_type != "Softmax" or not is_float(node.outputs[0]):
            continue
        scores = next(_before(node.inputs[0]), None)
        mix = next(_behind(node.outputs[0]), None)
        if scores is not None and mix is not None:
            found.append(Attention(scores, node, mix))
    return found


def of_softmax(value: ir.Value | None) -> bool:
    """Whether the value is a softmax's output, moved at most: shares of 1."""
    node = value.producer() if value is not None else None
    while node is not None and node.op_type in MOVES - {"Concat"}:
        node = node.inputs[0].producer() if node.inputs[0] is not None else None
    return node is not None and node.op_type == "Softmax"


def _activations(node: ir.Node) -> bool:
    return node.op_type == "MatMul" and len(computed(node)) == 2


def _before(value: ir.Value | None) -> Iterator[ir.Node]:
    """The MatMuls of two activations that a value comes from, nearest first."""
    node = value.producer() if value is not None else None
    if node is None:
        return
    if _activations(node):
        yield node
    elif node.op_type in _SCORES:
        for source in computed(node):
            yield from _before(source)


def _behind(value: ir.Value) -> Iterator[ir.Node]:
    """The MatMuls of two activations that take the value as their first operand."""
    for node in consumers(value):
        if _activations(node) and node.inputs[0] is value:
            yield node
        elif node.op_type in _WEIGHTS:
            yield from _behind(node.outputs[0])
