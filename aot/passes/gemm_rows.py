"""Rows of a matrix product that are laid out in one dim for it, and then again in several."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import array, attribute, before, constant, dims, made_by, nodes, only_user, replace, same
from aot.passes._linear import Layer, channel_vector, read_layer

# Elements of a weight that is turned for it.
_MOST = 1 << 24


@graph_pass(
    anchors=("Gemm", "MatMul"),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,3,2] x) => (float[B,3,2] y)
    <float[2,2] w = {1, 2, 3, 4}, float[2] c = {1, -1}, int64[2] flat = {-1, 2}, int64[3] full = {-1, 3, 2}>
    { r = Reshape(x, flat)  a = Gemm<transB = 1>(r, w, c)  y = Reshape(a, full) }
    """,
)
def gemm_rows(model: ir.Model, skip: Skip) -> int:
    """Reshape(Reshape(X) W + c) = Reshape'(X) W + c, where the last Reshape only says how the rows are counted: a
    product with a weight takes rows in any number of dims. Where X has them already, neither Reshape is left.
    """
    changed = 0
    for node in nodes(model, "Gemm", "MatMul"):
        flat, full = made_by(node.inputs[0], "Reshape"), only_user(node.outputs[0])
        if flat is None or full is None or full.domain or full.op_type != "Reshape" or full.graph is not node.graph:
            continue
        layer = read_layer(node)
        target = _target(full)
        if layer is None or layer.rank != 2 or layer.inner or target is None or target[-1] != layer.outputs:
            continue
        plain = attribute(node, "alpha", 1.0) == 1 == attribute(node, "beta", 1.0)
        if not plain or (layer.bias is not None and channel_vector(array(layer.bias), layer.outputs, 0, 2) is None):
            continue
        weight = _upright(model, layer)
        if weight is None:
            skip(node, "its weight would have to be turned, and is large or read elsewhere too")
            continue
        changed += _write(model, layer, weight, flat, full, target)
    return changed


def _target(full: ir.Node) -> list[int] | None:
    """The dims that the Reshape behind asks for: three or more, none copied from its input."""
    target = array(full.inputs[1])
    if target is None or len(target) < 3 or not target.all():
        return None
    return [int(size) for size in target]


def _upright(model: ir.Model, layer: Layer) -> ir.Value | None:
    """The weight as [in, out]; None where that would cost more than it is worth."""
    if not attribute(layer.node, "transB", 0):
        return layer.weight
    if layer.shared or layer.inputs * layer.outputs > _MOST:
        return None
    data = array(layer.weight)
    assert data is not None
    return constant(model, f"{layer.weight.name}_turned", np.ascontiguousarray(data.T))


def _write(model: ir.Model, layer: Layer, weight: ir.Value, flat: ir.Node, full: ir.Node, target: list[int]) -> int:
    node, x = layer.node, flat.inputs[0]
    if not _counted_alike(x, full.outputs[0]) or (dims(x) or [None])[-1] != layer.inputs:
        if only_user(flat.outputs[0]) is not node:
            return 0
        rows = constant(model, f"{full.outputs[0].name}_rows", np.array([*target[:-1], layer.inputs], np.int64))
        x = before(full, "Reshape", [x, rows], like=flat)
    if layer.bias is None:
        replace(full, "MatMul", [x, weight], like=node)
    else:
        product = before(full, "MatMul", [x, weight], like=node)
        replace(full, "Add", [product, layer.bias], like=node)
    return 1


def _counted_alike(x: ir.Value | None, y: ir.Value) -> bool:
    """Whether both are known to have the same dims, but for the last."""
    a, b = dims(x), dims(y)
    return a is not None and b is not None and len(a) == len(b) and all(map(same, a[:-1], b[:-1]))
