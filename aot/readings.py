"""How layers read the values of a graph: which axis they contract over, and how much each channel matters to them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from aot.precision.layers import Layer, describe
from aot.precision.reading import constant, is_float
from aot.statistics import Reading

# The gain of the channel that matters most.
_TOP = 4096


def readings_of(graph: ir.Graph) -> Mapping[str, Reading]:
    """Of every value that may be quantized: inputs of MatMul, Gemm, Conv and ConvTranspose, and of Adds of two."""
    axes: dict[str, set[int | None]] = {}
    norms: dict[str, NDArray[np.float64]] = {}
    for node in graph:
        for value, axis, norm in _reads(node):
            name = value.name or ""
            axes.setdefault(name, set()).add(axis)
            if norm is not None:
                known = norms.get(name)
                norms[name] = norm if known is None or known.shape != norm.shape else known + norm
    found = {}
    for name, seen in axes.items():
        channels = seen - {None}
        if len(channels) != 1 or name not in norms:
            found[name] = Reading()  # nobody tells channels apart, or layers do so along different axes
            continue
        norm = norms[name]
        gain = np.maximum(np.rint(norm * (_TOP / max(float(norm.max()), np.finfo(np.float64).tiny))), 1)
        found[name] = Reading(channels.pop(), gain.astype(np.int64))
    return found


def _reads(node: ir.Node) -> list[tuple[ir.Value, int | None, NDArray[np.float64] | None]]:
    """What a node reads: the value, the axis that it contracts over, and the squared norm of each channel's weights."""
    if node.domain != "" or not any(is_float(v) for v in node.outputs):
        return []
    if node.op_type == "Add":
        both = [v for v in node.inputs if v is not None and is_float(v) and v.const_value is None]
        return [(value, None, None) for value in both] if len(both) == 2 else []
    layer = describe(node)
    if layer is None:
        return []
    value = node.inputs[layer.activation]
    if layer.weight is None:
        return [(v, None, None) for v in node.inputs[:2] if v is not None]
    weight = constant(node.inputs[layer.weight])
    if value is None or value.shape is None or weight is None:
        return []
    axis = 1 if node.op_type in {"Conv", "ConvTranspose"} else len(value.shape) - (2 if layer.activation else 1)
    if node.op_type == "Gemm" and "transA" in node.attributes and node.attributes["transA"].as_int():
        axis = 0
    return [(value, axis, _norms(layer, weight))]


def _norms(layer: Layer, weight: NDArray[np.float32]) -> NDArray[np.float64]:
    """The squared norm of the weights that read each input channel, [C]."""
    squares: NDArray[np.float64] = np.square(weight, dtype=np.float64)
    op = layer.node.op_type
    if op == "Conv":  # [M, C / groups, ...]: each group of filters reads its own channels
        squares = squares.reshape(layer.groups, -1, weight.shape[1], squares[0, 0].size)
        found = squares.sum(axis=(1, 3)).reshape(-1)
    elif op == "ConvTranspose":  # [C, M / groups, ...]
        found = squares.reshape(weight.shape[0], -1).sum(axis=1)
    else:  # MatMul and Gemm: all axes but the contracted one
        contracted = weight.ndim - 2 if layer.weight == 1 else weight.ndim - 1
        if op == "Gemm" and layer.axis == 0:
            contracted = 1
        found = squares.sum(axis=tuple(i for i in range(weight.ndim) if i != contracted))
    return np.asarray(found, np.float64)
