"""Fourier transforms, which TensorRT does not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import attribute, constant, dims, nodes, replace, scalar

LONGEST = 4096
"""Beyond this length the two matrices of a transform would take more than 128 MiB."""


@graph_pass(
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,S,6,1] x) => (float[B,S,4,2] y) <int64 last = {2}, int64 before = {1}>
    { u = DFT<onesided = 1>(x, , last)  v = DFT(u, , before)  y = DFT<inverse = 1>(v, , last) }
    """
)
def dft_products(model: ir.Model, skip: Skip) -> int:
    """DFT(a + ib) = (aC + bS) + i(bC - aS), where C and S hold cos and sin of 2π jk / N; with -S and divided by N for
    the inverse, and with the first N/2 + 1 columns for a one-sided transform.

    The definition of the discrete Fourier transform, as two matrix products. The matrices are constants where N is
    fixed, and computed with jk reduced modulo N where it is not.
    """
    changed = 0
    for node in nodes(model, "DFT"):
        shape = dims(node.inputs[0])
        axis = _axis(node)
        if shape is None or axis is None:
            skip(node, "the axis or the rank of the input is not known")
            continue
        axis %= len(shape)
        length, inverse, onesided = shape[axis], attribute(node, "inverse", 0), attribute(node, "onesided", 0)
        x = node.inputs[0]
        assert x is not None
        wanted = node.inputs[1] if len(node.inputs) > 1 else None
        if x.dtype != ir.DataType.FLOAT or (wanted is not None and scalar(wanted) != length) or (inverse and onesided):
            skip(node, "it is not FP32, pads or cuts its input, or goes from one side back to real numbers")
            continue
        if isinstance(length, int) and length > LONGEST:
            skip(node, f"its length of {length} is beyond {LONGEST}")
            continue
        cos, sin = _matrices(model, node, x, axis, length, bool(onesided), bool(inverse))
        _products(model, node, x, axis, len(shape), shape[-1] == 2, cos, sin)
        changed += 1
    return changed


def _axis(node: ir.Node) -> int | None:
    """The transformed axis: an attribute up to opset 19, then an input that is -2 where it is left out."""
    if "axis" in node.attributes:
        return int(attribute(node, "axis"))
    given = node.inputs[2] if len(node.inputs) > 2 else None
    found = -2.0 if given is None else scalar(given)
    return None if found is None else int(found)


def _add(node: ir.Node, op: str, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any] | None = None) -> Any:
    """A new node before `node`, of the same origin; returns its output."""
    made = ir.node(op, inputs, dict(attributes or {}), metadata_props=dict(node.metadata_props))
    assert node.graph is not None
    node.graph.insert_before(node, made)
    return made.outputs[0]


def _matrices(
    model: ir.Model, node: ir.Node, x: ir.Value, axis: int, length: Any, onesided: bool, inverse: bool
) -> tuple[ir.Value, ir.Value]:
    """C and S, float32 [N, K], with the sign and the scale that the direction asks for."""
    name = f"{node.outputs[0].name}_dft"
    if isinstance(length, int):
        count = length // 2 + 1 if onesided else length
        angle = 2 * np.pi * (np.outer(np.arange(length), np.arange(count)) % length) / length
        scale, sign = (1 / length, -1) if inverse else (1.0, 1)
        cos, sin = np.cos(angle) * scale, np.sin(angle) * scale * sign
        return (
            constant(model, f"{name}_cos", cos.astype(np.float32)),
            constant(model, f"{name}_sin", sin.astype(np.float32)),
        )

    def number(value: float, kind: type) -> ir.Value:
        return constant(model, f"{name}_{kind.__name__}_{value:g}", np.array(value, kind))

    zero, one = number(0, np.int64), number(1, np.int64)
    first = constant(model, f"{name}_first", np.array([0], np.int64))
    n = _add(node, "Squeeze", [_add(node, "Shape", [x], {"start": axis, "end": axis + 1}), first])
    rows = _add(node, "Range", [zero, n, one])
    columns = rows
    if onesided:
        columns = _add(
            node, "Range", [zero, _add(node, "Add", [_add(node, "Div", [n, number(2, np.int64)]), one]), one]
        )
    last = constant(model, f"{name}_last", np.array([1], np.int64))
    product = _add(node, "Mul", [_add(node, "Unsqueeze", [rows, last]), _add(node, "Unsqueeze", [columns, first])])
    float32 = {"to": ir.DataType.FLOAT}
    share = _add(node, "Cast", [_add(node, "Mod", [product, n])], float32)
    size = _add(node, "Cast", [n], float32)
    angle = _add(node, "Mul", [_add(node, "Div", [share, size]), number(2 * np.pi, np.float32)])
    cos, sin = _add(node, "Cos", [angle]), _add(node, "Sin", [angle])
    if inverse:
        cos, sin = _add(node, "Div", [cos, size]), _add(node, "Div", [_add(node, "Neg", [sin]), size])
    return cos, sin


def _products(
    model: ir.Model, node: ir.Node, x: ir.Value, axis: int, rank: int, is_complex: bool, cos: ir.Value, sin: ir.Value
) -> None:
    """Put the products in the place of `node`: the transformed axis goes last and comes back."""
    name = f"{node.outputs[0].name}_dft"
    swapped = list(range(rank - 1))
    swapped[axis], swapped[-1] = swapped[-1], swapped[axis]

    def part(index: int) -> Any:
        at = constant(model, f"{name}_part", np.array(index, np.int64))
        return moved(_add(node, "Gather", [x, at], {"axis": rank - 1}))

    def moved(value: Any) -> Any:
        return value if axis == rank - 2 else _add(node, "Transpose", [value], {"perm": swapped})

    a = part(0)
    real, imaginary = _add(node, "MatMul", [a, cos]), _add(node, "Neg", [_add(node, "MatMul", [a, sin])])
    if is_complex:
        b = part(1)
        real = _add(node, "Add", [real, _add(node, "MatMul", [b, sin])])
        imaginary = _add(node, "Add", [_add(node, "MatMul", [b, cos]), imaginary])
    last = constant(model, f"{name}_axis", np.array([-1], np.int64))
    parts = [_add(node, "Unsqueeze", [moved(value), last]) for value in (real, imaginary)]
    replace(node, "Concat", parts, {"axis": -1})
