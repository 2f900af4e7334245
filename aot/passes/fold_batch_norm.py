"""Batch normalization behind a layer that is linear in its weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import array, attribute, constant, made_by, nodes, only_user, replace

Array = np.ndarray[Any, Any]


def _scale_channels(layer: ir.Node, weight: Array, a: Array) -> Array:
    """The layer's weight with output channel i multiplied by a[i].

    Conv: [out, in/group, ...]. ConvTranspose: [in, out/group, ...]. Gemm: [in, out], or [out, in] where transB.
    """
    if layer.op_type == "ConvTranspose":
        group = attribute(layer, "group", 1)
        parts = weight.reshape(group, weight.shape[0] // group, *weight.shape[1:])
        scaled = parts * a.reshape(group, 1, weight.shape[1], *[1] * (weight.ndim - 2))
        return scaled.reshape(weight.shape)
    if layer.op_type == "Gemm" and not attribute(layer, "transB", 0):
        return weight * a
    return weight * a.reshape(-1, *[1] * (weight.ndim - 1))


@graph_pass(
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,1,3,3] x) => (float[B,2,3,3] y)
    <float[2,1,1,1] w = {0.5, -2}, float[2] gamma = {1, 2}, float[2] beta = {0.5, 1}, float[2] mean = {1, 0},
     float[2] var = {4, 1}>
    { c = Conv(x, w)  y = BatchNormalization(c, gamma, beta, mean, var) }
    """
)
def fold_batch_norm(model: ir.Model, skip: Skip) -> int:
    """BN(W*x + c) = (aW)*x + (ac + b) with, for each channel, a = gamma / sqrt(var + epsilon), b = beta - a·mean.

    Batch normalization at inference is a·x + b, and convolutions, transposed convolutions and Gemm are linear in
    weight and bias. The new weights are computed in FP64 and rounded once.
    """
    changed = 0
    for norm in nodes(model, "BatchNormalization"):
        layer = made_by(norm.inputs[0], "Conv", "ConvTranspose", "Gemm")
        if layer is None:
            continue
        if attribute(norm, "training_mode", 0) or len(norm.outputs) != 1 or only_user(layer.outputs[0]) is None:
            skip(norm, "it is in training mode, or the layer's own output is needed too")
            continue
        statistics = [array(value) for value in norm.inputs[1:5]]
        weight = array(layer.inputs[1])
        has_bias = len(layer.inputs) > 2 and layer.inputs[2] is not None
        bias = array(layer.inputs[2]) if has_bias else np.zeros(1)
        if weight is None or bias is None or any(value is None for value in statistics):
            skip(norm, "a weight or a statistic is computed at run time")
            continue
        gamma, beta, mean, var = (np.asarray(value, np.float64) for value in statistics)
        a = gamma / np.sqrt(var + attribute(norm, "epsilon", 1e-5))
        attributes = {name: found.value for name, found in layer.attributes.items()}
        # Gemm computes alpha·AB + beta·C: scaling B scales the first term, and C is made to need no factor.
        bias = bias.astype(np.float64) * attributes.pop("beta", 1.0)
        name = layer.inputs[1].name if layer.inputs[1] is not None else ""
        new_weight = constant(model, f"{name}_folded", _scale_channels(layer, weight, a).astype(weight.dtype))
        new_bias = constant(model, f"{name}_folded_bias", (a * (bias - mean) + beta).astype(weight.dtype))
        # The layer is what a reader looks for, so its name and metadata are the ones to keep.
        replace(norm, layer.op_type, [layer.inputs[0], new_weight, new_bias], attributes, like=layer)
        changed += 1
    return changed
