"""What a node costs, in operations."""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx_ir as ir

LINEAR = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose"})
Shapes = Mapping[str, tuple[int, ...]]


def shapes_at(graph: ir.Graph, inputs: Shapes) -> dict[str, tuple[int, ...]]:
    """The shapes of the computed values where the inputs, by name, have these; values with sizes of their own left
    out."""
    sizes = {
        dim.value: size
        for value in graph.inputs
        for dim, size in zip(value.shape or (), inputs.get(value.name or "", ()), strict=False)
        if not isinstance(dim, int)
    }
    found: dict[str, tuple[int, ...]] = {}
    for node in graph:
        for value in node.outputs:
            if value.shape is not None:
                dims = [dim if isinstance(dim, int) else sizes.get(dim.value) for dim in value.shape]
                if None not in dims:
                    found[value.name or ""] = tuple(dim for dim in dims if dim is not None)
    return found


def operations(graph: ir.Graph, shapes: Shapes) -> dict[str, int]:
    """By node name: the multiply-adds of MatMul, Gemm and convolutions, one an element of the output elsewhere.

    `shapes` holds the computed values and the inputs; where it lacks one the node counts nothing.
    """
    known = {name: tuple(value.const_value.shape.numpy()) for name, value in graph.initializers.items()
             if value.const_value is not None} | dict(shapes)  # fmt: skip
    return {node.name or "": _of(node, known) for node in graph}


def _of(node: ir.Node, shapes: Shapes) -> int:
    made = shapes.get(node.outputs[0].name or "")
    if made is None:
        return 0
    if node.op_type not in LINEAR:
        return math.prod(made)
    left, right = (shapes.get(value.name or "") if value is not None else None for value in node.inputs[:2])
    if left is None or right is None:
        return 0
    if node.op_type == "MatMul":
        return math.prod(made) * left[-1]
    if node.op_type == "Gemm":
        transposed = node.attributes.get("transA")
        return math.prod(made) * left[0 if transposed is not None and transposed.as_int() else 1]
    # Every output of a convolution is a sum over a filter; every input of a transposed one goes into as many outputs.
    return math.prod(made if node.op_type == "Conv" else left) * math.prod(right[1:])
