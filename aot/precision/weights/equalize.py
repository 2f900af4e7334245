"""Cross-layer equalization: the channels between two convolutions are given like ranges (arXiv 1906.04721, 4.1).

Channel i between a layer with weights of range r1_i for it (over its inputs) and layers that read it with weights of
range r2_i is divided by

    s_i = sqrt(r1_i r2_i) / r2_i,

which makes both ranges sqrt(r1_i r2_i). What is between the layers must commute with a positive factor: nothing, Relu,
a pooling; Clip to [0, 6] does not and ends the chain.

With one scale for each output channel, the first weight's rounding does not depend on s at all; what does is that of
the activation between, which has one scale. r1 is then the range of the activation's channel, as calibration saw it.
A depthwise convolution has a scale for each channel that it reads, so there the activation's channels are given one
range: r2_i = 1.

Where something in between does not commute, such as HardSwish, and is a kernel of its own anyway, a Mul behind it
divides the activation, where that is worth much, in INT8, whose steps are as large for a small channel as for a large
one. A text detector (PP-OCRv4, its activations HardSwish) comes to a relative L2 of 0.13 so, and 0.47 without, on parts
of two scans that it was not calibrated on. Not timed on a GPU.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from aot.precision.layers import Layer, describe
from aot.precision.reading import constant, consumers, is_constant
from aot.precision.weights.absorb import Absorption, Array, Unabsorbed, absorb
from aot.precision.weights.layers import gains, matrices
from aot.precision.weights.move import divide_by_node, divide_where_made
from aot.precision.weights.seen import Seen
from aot.precision.weights.smooth import smoothing, weight_ranges
from aot.precision.weights.work import Work

# Where weights have one scale, a pair's ranges depend on those of its neighbours: pairs are balanced in turn until no
# factor differs from 1 by more than this, or so many times.
_SETTLED, _TURNS = 0.01, 20
# A Mul is added where the expected error of the layers that read it falls to this share of its square.
_WORTH = 0.5
# What computes a value in a kernel of its own, or in one that a Mul joins.
_APART = {"HardSwish", "Mul", "Add"}


def equalize(graph: ir.Graph, per_channel: bool, seen: Seen) -> Work:
    """Equalize the channels between convolutions. Changes the graph and what was seen.

    per_channel: weights will have one scale for each output channel.
    """
    work = Work("equalize")
    pairs: dict[ir.Value, list[Layer]] = {}
    for node in graph:
        layer = describe(node) if node.op_type == "Conv" else None
        if layer is not None and (value := node.inputs[0]) is not None:
            pairs.setdefault(value, []).append(layer)
    for turn in range(1 if per_channel else _TURNS):
        furthest = 0.0
        for value, layers in pairs.items():
            names = [str(layer.node.name) for layer in layers]
            if turn and names[0] in work.left:
                continue
            try:
                factor = _factor(value, layers, per_channel, seen)
                _divide(value, layers, factor, seen)
            except Unabsorbed as reason:
                work.left.update(dict.fromkeys(names, str(reason)))
                continue
            work.done += names if turn == 0 else []
            furthest = max(furthest, float(np.abs(factor - 1).max()))
        if furthest <= _SETTLED:
            break
    return work


def _divide(value: ir.Value, layers: list[Layer], factor: Array, seen: Seen) -> None:
    try:
        divide_where_made(value, layers, factor, seen)
    except Unabsorbed:
        if not seen.form.whole or not _apart(value, layers) or _left(value, layers, factor, seen) > _WORTH:
            raise
        divide_by_node(value, layers, factor, seen)


def _apart(value: ir.Value, layers: list[Layer]) -> bool:
    """Whether a Mul between the value and the layers parts nothing that kernels join: the layers alone read it, and it
    is no convolution's output, nor a sum of two."""
    node = value.producer()
    if node is None or node.op_type not in _APART or {*consumers(value)} != {layer.node for layer in layers}:
        return False
    return node.op_type != "Add" or any(is_constant(operand) for operand in node.inputs)


def _left(value: ir.Value, layers: list[Layer], factor: Array, seen: Seen) -> float:
    """The squared error that rounding the value adds to the layers' outputs, as a share of the one without the factor:
    its steps are as large as its largest channel and count with the weights of each."""
    channels = seen.channels(value, 1)
    arrays = [(array, layer) for layer in layers if (array := constant(layer.node.inputs[1])) is not None]
    norms = [found for array, layer in arrays if (found := gains(array, layer)) is not None]
    if channels is None or not norms or not channels.amax.max(initial=0.0):
        return 1.0
    total = np.sum(norms, axis=0)
    after = (channels.amax / factor).max() ** 2 * (total * factor**2).sum()
    return float(after / (channels.amax.max() ** 2 * total.sum()))


def _factor(value: ir.Value, layers: list[Layer], per_channel: bool, seen: Seen) -> Array:
    if value.shape is None:
        raise Unabsorbed(f"the shape of {value.name} is not known")
    second = np.max([weight_ranges(layer) for layer in layers], axis=0)
    if not per_channel:
        ones = np.ones([len(second) if i == 1 else 1 for i in range(len(value.shape))])
        return smoothing(_weights_before(absorb(value, ones, [layer.node for layer in layers])), second, 0.5)
    channels = seen.channels(value, 1)
    if channels is None:
        raise Unabsorbed(f"the channels of {value.name} were not observed")
    own = all(layer.depthwise for layer in layers)
    return smoothing(channels.amax, second, 1.0 if own else 0.5)


def _weights_before(found: Absorption) -> Array:
    """[C], the largest weight of every output channel of the convolution that takes the factor in."""
    for node, index in found.edits:
        layer = describe(node) if node.op_type == "Conv" and index == 1 else None
        array = constant(node.inputs[1]) if layer is not None else None
        matrix = None if array is None or layer is None else matrices(array, layer)
        if matrix is not None:
            largest: Array = np.abs(matrix).max(axis=2).reshape(-1)
            return largest
    raise Unabsorbed("no convolution comes before it")
