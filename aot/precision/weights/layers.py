"""A layer's weight as one matrix a group: outputs by inputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from aot.precision.layers import Layer
from aot.precision.reading import attribute

Array = np.ndarray[Any, Any]


def matrices(array: Array, layer: Layer) -> Array | None:
    """The weight (or an array of its shape) as [groups, outputs, inputs x window], a view where it can be.

    None for what is no sum of products over the channels of the layer's input: a batch of matrices, a transposed
    convolution.
    """
    node = layer.node
    if node.op_type == "Conv":
        return array.reshape(layer.groups, array.shape[0] // layer.groups, -1)
    if array.ndim != 2 or node.op_type == "ConvTranspose" or attribute(node, "transA", 0):
        return None
    return array[None] if _rows(layer) else array.T[None]


def weight_of(matrix: Array, layer: Layer, shape: tuple[int, ...]) -> Array:
    """The inverse of `matrices`."""
    if layer.node.op_type == "Conv" or _rows(layer):
        return matrix.reshape(shape)
    return np.ascontiguousarray(matrix[0].T)


def _rows(layer: Layer) -> bool:
    """Whether the outputs are the rows of the matrix."""
    return layer.axis == 0


def contraction(layer: Layer) -> int:
    """The axis of the layer's input that it sums over."""
    if layer.node.op_type in {"Conv", "ConvTranspose"}:
        return 1
    return -1 if layer.activation == 0 else -2


def window(layer: Layer, shape: tuple[int, ...]) -> int:
    """How many elements of the weight each pair of channels has: 3 x 3 = 9 for such a convolution."""
    return int(np.prod(shape[2:], dtype=np.int64)) if layer.node.op_type == "Conv" else 1


def gains(array: Array, layer: Layer) -> Array | None:
    """[inputs], the squared norm of the weights of every input channel."""
    return _over_outputs(array.astype(np.float64) ** 2, layer, np.add)


def ranges(array: Array, layer: Layer) -> Array | None:
    """[inputs], the largest magnitude of the weights of every input channel."""
    return _over_outputs(np.abs(array), layer, np.maximum)


def _over_outputs(array: Array, layer: Layer, reduce: np.ufunc) -> Array | None:
    found = matrices(array, layer)
    if found is None:
        return None
    groups, _, size = found.shape
    each = window(layer, array.shape)
    over: Array = reduce.reduce(reduce.reduce(found, axis=1).reshape(groups, size // each, each), axis=2)
    return over.reshape(-1)
