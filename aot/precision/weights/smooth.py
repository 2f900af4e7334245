"""SmoothQuant: part of an input channel's range moves from the activation into the weight (arXiv 2211.10438).

The activation of a linear layer is divided by s and the rows of its weight multiplied by it,

    s_j = max|X_j|^alpha / max|W_j|^(1 - alpha),

over all layers that read the activation. The division is taken in by what computes the activation (`absorb`), so no
node is added and the function stays. All s are scaled by one number, which changes no quantization error, such that
the largest activation stays as large as it was: with that, no weight grows beyond its largest value either, and FP16
has the room that it had.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from aot.precision.layers import Layer, describe
from aot.precision.reading import constant, consumers
from aot.precision.weights.absorb import Array, Unabsorbed, absorb, carry_out, editable, rescale
from aot.precision.weights.layers import gains, ranges
from aot.precision.weights.seen import Seen
from aot.precision.weights.work import Work

# A channel counts as at least this share of the largest one, so that what calibration hardly saw is not blown up.
_LEAST = 1e-5


def smooth(graph: ir.Graph, ops: tuple[str, ...], alpha: float, seen: Seen) -> Work:
    """Smooth every MatMul and Gemm with a constant weight. Changes the graph and what was seen."""
    work = Work("smooth")
    groups: dict[ir.Value, list[Layer]] = {}
    for node in graph:
        layer = describe(node) if node.op_type in {"MatMul", "Gemm"} and node.op_type in ops else None
        if layer is not None and layer.weight is not None and (value := node.inputs[layer.activation]) is not None:
            groups.setdefault(value, []).append(layer)
    for value, layers in groups.items():
        try:
            _smooth(value, layers, alpha, seen)
        except Unabsorbed as reason:
            work.left.update({str(layer.node.name): str(reason) for layer in layers})
        else:
            work.done += [str(layer.node.name) for layer in layers]
    return work


def _smooth(value: ir.Value, layers: list[Layer], alpha: float, seen: Seen) -> None:
    channels = seen.channels(value, -1)
    if channels is None:
        raise Unabsorbed(f"the channels of {value.name} were not observed")
    weights = [weight_ranges(layer) for layer in layers]
    factor = smoothing(channels.amax, np.max(weights, axis=0), alpha)
    multiply_weights(value, layers, factor, seen)


def smoothing(inputs: Array, weights: Array, alpha: float) -> Array:
    """[C], what to divide the activation by. inputs, weights: [C], the largest magnitude of every input channel.

    Channels without input or without weight stay as they are.
    """
    known = (inputs > 0) & (weights > 0)
    if not known.any():
        return np.ones(len(inputs))
    x = np.maximum(inputs, _LEAST * inputs.max()).astype(np.float64)
    w = np.maximum(weights, _LEAST * weights.max()).astype(np.float64)
    factor = x**alpha / w ** (1 - alpha)
    factor *= (x / factor)[known].max() / x[known].max()
    return np.where(known, factor, 1.0)


def weight_ranges(layer: Layer) -> Array:
    """[C], the largest weight of every input channel. Raises Unabsorbed where the weight cannot be changed."""
    weight = layer.node.inputs[layer.weight or 0]
    found = None
    if layer.weight == 1 and editable(weight) and (array := constant(weight)) is not None:
        found = ranges(array, layer)
    if found is None:
        raise Unabsorbed(f"the weight of {layer.node.op_type} {layer.node.name} is shared, or no matrix of its own")
    return found


def multiply_weights(value: ir.Value, layers: list[Layer], factor: Array, seen: Seen) -> None:
    """Divide `value` by the factors of its channels (axis 1 of a convolution's input, else the last) and multiply the
    weights of the layers, all that read it. Raises Unabsorbed, having changed nothing, where it cannot be divided."""
    assert value.shape is not None
    rank = len(value.shape)
    axis = 1 if layers[0].node.op_type == "Conv" else rank - 1
    shaped = factor.reshape([-1 if i == axis else 1 for i in range(rank)])
    readers = [layer.node for layer in layers]
    other = next((n for n in consumers(value) if n not in readers), None)
    if other is not None:
        raise Unabsorbed(f"{value.name} is also read by {other.op_type} {other.name}")
    found = absorb(value, shaped, readers)
    carry_out(found)
    gain = np.ones(len(factor))
    for layer in layers:
        rescale(layer.node, 1, _over_inputs(factor, layer))
        array = constant(layer.node.inputs[1]) if seen.weighted(value) else None
        part = None if array is None else gains(array, layer)
        gain = gain if part is None else gain + part
    seen.divide(found.divided, gain)


def _over_inputs(factor: Array, layer: Layer) -> Array:
    """The factors, shaped to multiply the inputs of the weight."""
    if layer.node.op_type == "Conv":
        weight = layer.node.inputs[1]
        assert weight is not None
        assert weight.shape is not None
        assert layer.outputs is not None
        each = factor.reshape(layer.groups, -1)
        if layer.groups > 1:
            each = np.repeat(each, layer.outputs // layer.groups, axis=0)
        return each.reshape(*each.shape, *(1,) * (len(weight.shape) - 2))
    return factor.reshape(-1, 1) if layer.axis == 1 else factor.reshape(1, -1)
