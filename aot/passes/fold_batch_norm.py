"""Batch normalization behind, or in front of, a layer that is linear in its weights."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import array, attribute, nodes, only_user
from aot.passes._linear import Layer, fold_ahead, fold_behind, layer_of, layer_reading

Array = np.ndarray[Any, Any]

# How many standard deviations a channel's mean may lie from zero for a norm to move through the layer behind it.
# Folded, the mean is taken off what the layer made of it, and rounding errors of its size stay.
_OFFSET = 30.0


class _Norm(NamedTuple):
    """a·x + b, one number a channel, in FP64; offset: |mean| / deviation of the channel where that is largest."""

    a: Array
    b: Array
    offset: float


@graph_pass(
    anchors=("BatchNormalization",),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,1,3,3] x) => (float[B,2,3,3] y)
    <float[2,1,1,1] w = {0.5, -2}, float[2] gamma = {1, 2}, float[2] beta = {0.5, 1}, float[2] mean = {1, 0},
     float[2] var = {4, 1}>
    { c = Conv(x, w)  y = BatchNormalization(c, gamma, beta, mean, var) }
    """,
)
def fold_batch_norm(model: ir.Model, skip: Skip) -> int:
    """BN(Wx + c) = (aW)x + (ac + b), and W·BN(x) + c = (Wa)x + (c + Wb) where nothing is padded with zeros, with for
    each channel a = gamma / sqrt(var + epsilon) and b = beta - a·mean.

    Batch normalization at inference is a·x + b, and convolutions, transposed convolutions, Gemm and MatMul are linear
    in weight and bias. The new weights are computed in FP64 and rounded once.
    """
    changed = 0
    for norm in nodes(model, "BatchNormalization"):
        behind, ahead = layer_of(norm.inputs[0], norm), layer_reading(norm.outputs[0])
        if behind is None and ahead is None:
            continue
        parts = _read(norm)
        if parts is None:
            skip(norm, "it is in training mode, or a statistic is computed at run time")
            continue
        why = _into_layer(model, norm, behind, parts) if behind is not None else "no layer lies before it"
        if why is not None and ahead is not None:
            why = _through_layer(model, norm, ahead, parts)
        if why is None:
            changed += 1
        else:
            skip(norm, why)
    return changed


def _read(norm: ir.Node) -> _Norm | None:
    statistics = [array(value) for value in norm.inputs[1:5]]
    if attribute(norm, "training_mode", 0) or len(norm.outputs) != 1 or any(value is None for value in statistics):
        return None
    gamma, beta, mean, var = (np.asarray(value, np.float64) for value in statistics)
    deviation = np.sqrt(var + attribute(norm, "epsilon", 1e-5))
    return _Norm(gamma / deviation, beta - gamma / deviation * mean, float(np.max(abs(mean) / deviation, initial=0)))


def _into_layer(model: ir.Model, norm: ir.Node, layer: Layer, parts: _Norm) -> str | None:
    if only_user(layer.result) is not norm:
        return "the layer's own output is needed too"
    if layer.inner == 0 and layer.rank != 2:
        return "its channels are not those of the layer"
    return fold_behind(model, layer, norm, parts.a, parts.b)


def _through_layer(model: ir.Model, norm: ir.Node, layer: Layer, parts: _Norm) -> str | None:
    if layer.shared:
        return "something else reads the weight of the layer behind it"
    if layer.inner == 0 and layer.rank != 2:
        return "its channels are not those of the layer"
    if parts.offset > _OFFSET:
        return "a mean so far from zero would leave its rounding errors in the layer behind it"
    assert norm.inputs[0] is not None
    return fold_ahead(model, layer, norm.inputs[0], parts.a, parts.b)
