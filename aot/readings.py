"""How layers read the values of a graph: which axis they contract over, and how much each channel matters to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from aot.precision.layers import Layer, describe
from aot.precision.reading import attribute, constant, is_constant, is_float
from aot.statistics import Reading

# The gain of the channel that matters most.
_TOP = 1 << 20
_Weights = tuple[Layer, NDArray[np.float32]]


def readings_of(graph: ir.Graph, gains: bool = True) -> Mapping[str, Reading]:
    """Of every value that may be quantized: inputs of MatMul, Gemm, Conv and ConvTranspose, and what is added to the
    result of a convolution. gains: False leaves them out, and so reads no weights."""
    axes: dict[str, set[int | None]] = {}
    readers: dict[str, list[_Weights]] = {}
    for node in graph:
        for value, axis, weights in _reads(node):
            name = value.name or ""
            axes.setdefault(name, set()).add(axis)
            if weights is not None:
                readers.setdefault(name, []).append(weights)
    found = {}
    for name, seen in axes.items():
        channels = seen - {None}
        if len(channels) != 1 or name not in readers:
            found[name] = Reading()  # nobody tells channels apart, or layers do so along different axes
            continue
        found[name] = Reading(channels.pop(), _gain(readers[name]) if gains else None)
    return found


def _gain(readers: Sequence[_Weights]) -> NDArray[np.int64]:
    """Of what these layers read along one axis."""
    norm, *others = (_norms(*weights) for weights in readers)
    for other in others:
        norm = other if norm.shape != other.shape else norm + other
    return _steps(norm)


def _steps(norm: NDArray[np.float64]) -> NDArray[np.int64]:
    """Norms in whole steps; all alike where there is no largest one to compare with."""
    largest = float(norm.max(initial=0.0))
    if not 0 < largest < np.inf:
        return np.ones(norm.shape, np.int64)
    return np.maximum(np.rint(norm / largest * _TOP), 1).astype(np.int64)


def _reads(node: ir.Node) -> list[tuple[ir.Value, int | None, _Weights | None]]:
    """What a node reads: the value, the axis that it contracts over, and the weights that it meets there."""
    if node.domain != "" or not any(is_float(v) for v in node.outputs):
        return []
    if node.op_type == "Add":
        left, right = node.inputs
        if left is None or right is None or is_constant(left) or is_constant(right):
            return []
        skips = [other for value, other in ((left, right), (right, left)) if _convolved(value)]
        return [(value, None, None) for value in skips]
    layer = describe(node)
    if layer is None:
        return []
    value = node.inputs[layer.activation]
    if layer.weight is None:
        return [(v, None, None) for v in node.inputs[:2] if v is not None]
    weight = constant(node.inputs[layer.weight])
    if value is None or value.shape is None or weight is None:
        return []
    if node.op_type in {"Conv", "ConvTranspose"}:
        axis = 1
    elif node.op_type == "Gemm":
        axis = (1 - layer.activation) ^ attribute(node, ("transA", "transB")[layer.activation], 0)
    else:
        axis = len(value.shape) - 1 - layer.activation
    return [(value, axis, (layer, weight))]


def _convolved(value: ir.Value) -> bool:
    """Whether a convolution made it for the addition alone, so that the two may become one kernel."""
    producer = value.producer()
    return producer is not None and producer.op_type in {"Conv", "ConvTranspose"} and len(value.uses()) == 1


def _norms(layer: Layer, weight: NDArray[np.float32]) -> NDArray[np.float64]:
    """The squared norm of the weights that read each input channel, [C]."""
    squares: NDArray[np.float64] = np.square(weight, dtype=np.float64)
    op = layer.node.op_type
    if op == "Conv":  # [M, C / groups, ...]: each group of filters reads its own channels
        squares = squares.reshape(layer.groups, -1, weight.shape[1], squares[0, 0].size)
        found = squares.sum(axis=(1, 3)).reshape(-1)
    elif op == "ConvTranspose":  # [C, M / groups, ...]
        found = squares.reshape(weight.shape[0], -1).sum(axis=1)
    else:  # all axes but the contracted one
        contracted = weight.ndim - 2 if layer.weight == 1 else weight.ndim - 1
        if op == "Gemm":
            contracted = 0 if layer.axis == 1 else 1
        found = squares.sum(axis=tuple(i for i in range(weight.ndim) if i != contracted))
    return np.asarray(found, np.float64)
