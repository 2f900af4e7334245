"""Constant factors and shifts behind, or in front of, a layer that is linear in its weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import bypass, constant, dims, made_by, nodes, only_user, replace
from aot.passes._linear import (
    LAYERS,
    Affine,
    Layer,
    affine,
    channel_vector,
    fold_ahead,
    fold_behind,
    layer_reading,
    scaled_or_shifted,
)
from aot.passes._paths import Path, path_to

Array = np.ndarray[Any, Any]

# What lies between a norm's statistics and its scale.
_NORMALIZED = ("Div", "LpNormalization", "RMSNormalization")


@graph_pass(
    anchors=LAYERS,
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,2,3,3] x) => (float[B,2,3,3] y)
    <float[2,2,1,1] w = {0.5, -2, 1, 3}, float[2] c = {1, 2}, float[2,1,1] scale = {4, 3}, float[2,1,1] shift = {1, -1}>
    { a = Conv(x, w, c)  b = Mul(a, scale)  y = Sub(shift, b) }
    """,
)
def fold_scale(model: ir.Model, skip: Skip) -> int:
    """a·(Wx + c) + b = (aW)x + (ac + b), and W(ax + b) + c = (Wa)x + (c + Wb), with a and b one number a channel. Where
    the layer pads with zeros, which are scaled but not shifted, W(ax + b) = (Wa)(x + b/a).

    So it is with a Transpose in between, and other views of one dim.

    A weight that something else reads is not scaled, for then the file would hold two; nor is one of FP16 or BF16,
    which would be rounded twice. A shift alone leaves the weight in peace. An input of the graph keeps its shift, which
    may take a large part of it away; and a norm keeps its scale, for builders fuse it whole.
    """
    changed = 0
    for node in nodes(model, "Mul", "Div", "Add", "Sub", "Neg"):
        x = scaled_or_shifted(node)
        if x is None:
            continue
        ahead, path = layer_reading(node.outputs[0]), path_to(x, node)
        parts = affine(node) if ahead is not None or path.layer is not None else None
        if parts is None:
            continue
        why = _fold(model, path, node, parts) if not _moved(path, node, parts) else ""
        if why is not None and ahead is not None:
            why = _through_layer(model, node, ahead, parts)
        if why is None:
            changed += 1
        elif why:
            skip(node, why)
    return changed


@graph_pass(
    float_only=True,
    anchors=("MatMul",),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,S,4] x, float[B,2,2,S] k) => (float[B,2,S,S] y)
    <float[4,4] w = {1, 2, 3, 4, 5, 6, 7, 8, 8, 7, 6, 5, 4, 3, 2, 1}, int64[4] h = {0, 0, 2, 2}, float d = {0.5}>
    { q = MatMul(x, w)  r = Reshape(q, h)  t = Transpose<perm = [0, 2, 1, 3]>(r)  s = MatMul(t, k)  y = Mul(s, d) }
    """,
)
def fold_query_scale(model: ir.Model, skip: Skip) -> int:
    """a·V(Wx + c) = V((aW)x + ac), with a number a and views V, of a part of the channels where a Split is among them;
    and a number that a product of two activations is multiplied with is a factor of either: a·(Q K) = (aQ) K.

    Which weights are not scaled is as in `fold_scale`.
    """
    changed = 0
    for node in nodes(model, "Mul", "Div", "Neg"):
        parts = affine(node)
        why = _into_query(model, node, parts) if parts is not None else ""
        if why is None:
            changed += 1
        elif why:
            skip(node, why)
    return changed


def _into_query(model: ir.Model, node: ir.Node, parts: Affine) -> str | None:
    """Fold into the layer behind; None where it is done, else why not, which is empty where there is none."""
    path = path_to(parts.x, node)
    if _moved(path, node, parts):
        return _fold(model, path, node, parts)
    product = made_by(path.start, "MatMul")
    if path.layer is not None or product is None or only_user(product.outputs[0]) is not path.reader:
        return ""
    # A product of two activations, of which a layer computes one.
    if parts.b.any() or parts.a.size != 1 or parts.a.ndim > len(dims(parts.x) or ()):
        return ""
    for operand in product.inputs:
        path = path_to(operand, product)
        if _fold(model, path, node, parts) is None:
            return None
    return ""


def _moved(path: Path, node: ir.Node, parts: Affine) -> bool:
    """Whether a number stands behind views of a layer."""
    return path.layer is not None and path.reader is not node and parts.a.size == 1 and not parts.b.any()


def _fold(model: ir.Model, path: Path, node: ir.Node, parts: Affine) -> str | None:
    layer = path.layer
    if layer is None or (layer.node.op_type == "MatMul" and layer.rank != 2 and layer.bias is None and parts.b.any()):
        return ""  # the Add of a bias is where it should be
    if only_user(layer.result) is not path.reader:
        return "the layer's own output is needed too"
    a, b = path.channels(parts.a, 1.0), path.channels(parts.b, 0.0)
    if a is None or b is None:
        return "its constant differs along other axes than the layer's channels"
    if path.reader is node:
        return _unfit(layer, a) or fold_behind(model, layer, node, a, b)
    why = _unfit(layer, a) or fold_behind(model, layer, layer.add or layer.node, a, b)
    if why is None:
        bypass(node, parts.x)
    return why


def _through_layer(model: ir.Model, node: ir.Node, layer: Layer, parts: Affine) -> str | None:
    if dims(parts.x) is None or dims(parts.x) != dims(node.outputs[0]):
        return "x is not known to have the shape of what the layer reads"
    a, b = (channel_vector(part, layer.inputs, layer.inner, layer.rank) for part in (parts.a, parts.b))
    if a is None or b is None or made_by(parts.x, *_NORMALIZED) or (parts.b.any() and parts.x.producer() is None):
        return ""
    if layer.padded and b.any():
        return _around_the_shift(model, node, layer, parts)
    return _unfit(layer, a) or fold_ahead(model, layer, parts.x, a, b)


def _around_the_shift(model: ir.Model, node: ir.Node, layer: Layer, parts: Affine) -> str | None:
    """Swap a factor with the shift behind it, and fold it into the layer behind both."""
    inner = made_by(parts.x, "Mul", "Div", "Neg")
    factor = affine(inner) if inner is not None and only_user(parts.x) is node else None
    if factor is None or (parts.a != 1).any() or made_by(factor.x, *_NORMALIZED):
        return ""
    a = channel_vector(factor.a, layer.inputs, layer.inner, layer.rank)
    if a is None or not a.all():
        return ""
    why = _unfit(layer, a) or fold_ahead(model, layer, node.outputs[0], a, np.zeros(1))
    if why is None:
        shift = constant(model, f"{node.outputs[0].name}_shift", (parts.b / factor.a).astype(parts.dtype))
        replace(node, "Add", [factor.x, shift])
    return why


def _unfit(layer: Layer, scale: Array) -> str | None:
    """Why the weight cannot be scaled."""
    if (scale == 1).all():
        return None
    if layer.shared:
        return "something else reads the layer's weight"
    return "the layer's weight is narrow, and would be rounded twice" if layer.narrow else None
