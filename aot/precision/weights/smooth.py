"""SmoothQuant: part of an input channel's range moves from the activation into the weight (arXiv 2211.10438).

The activation of a linear layer is divided by s and the rows of its weight multiplied by it,

    s_j = max|X_j|^alpha / max|W_j|^(1 - alpha),

over all layers that read the activation. All s are scaled by one number, which changes no quantization error, such
that the largest activation stays as large as it was: with that, no weight grows beyond its largest value either, and
FP16 has the room that it had.

The division is taken in by what computes the activation (`absorb`). Where that cannot be, since something else reads
the activation too, it is a Mul in front of the layers: an elementwise operation next to their QuantizeLinear, which the
kernel of a norm in front does on the way. Behind a GELU it costs: TensorRT 10.6 rounds to INT8 in the kernel of the
product that the GELU belongs to, and with a Mul between the two needs a second one (BERT-base, 64 x 512, on an H200:
12.4 ms with, 10.5 ms without). So `auto` does that for much only; a share given by number is taken everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
import onnx_ir as ir

from aot.channels import Channels
from aot.precision.layers import Layer, describe
from aot.precision.reading import constant
from aot.precision.weights.absorb import Array, Unabsorbed, editable
from aot.precision.weights.layers import matrices, ranges
from aot.precision.weights.moments import mean_squares
from aot.precision.weights.move import divide_by_node, divide_where_made
from aot.precision.weights.seen import Seen
from aot.precision.weights.work import Work

# A channel counts as at least this share of the largest one: below, INT8 has no step for it, and what calibration
# hardly saw is not blown up.
_LEAST = 1e-3
# What `auto` tries. Beyond, every channel fills the range, and data that calibration has not seen is cut off.
_ALPHAS = tuple(float(alpha) for alpha in np.linspace(0.0, 0.85, 18))
# `auto` wants to have seen so many values of every channel: fewer do not tell how large they become.
_ENOUGH = 32
# A Mul is added where the expected error falls to at most this share; the second, where it costs a kernel.
_WORTH, _WORTH_A_KERNEL = 0.8, 0.2
_EPILOGUES = {"Gelu", "Relu"}


def smooth(graph: ir.Graph, ops: Sequence[str], alpha: float | Literal["auto"], per_channel: bool, seen: Seen) -> Work:
    """Smooth every MatMul and Gemm with a constant weight. Changes the graph and what was seen.

    alpha `auto`: for each activation the one with the least expected error, or none. per_channel: weights will have
    one scale for each output channel.
    """
    work = Work("smooth")
    groups: dict[ir.Value, list[Layer]] = {}
    for node in graph:
        layer = describe(node) if node.op_type in {"MatMul", "Gemm"} and node.op_type in ops else None
        if layer is not None and layer.weight is not None and (value := node.inputs[layer.activation]) is not None:
            groups.setdefault(value, []).append(layer)
    for value, layers in groups.items():
        try:
            _smooth(value, layers, alpha, per_channel, seen)
        except Unabsorbed as reason:
            work.left.update({str(layer.node.name): str(reason) for layer in layers})
        else:
            work.done += [str(layer.node.name) for layer in layers]
    return work


def _smooth(
    value: ir.Value, layers: list[Layer], alpha: float | Literal["auto"], per_channel: bool, seen: Seen
) -> None:
    channels = seen.channels(value, -1)
    if channels is None:
        raise Unabsorbed(f"the channels of {value.name} were not observed")
    weights = np.max([weight_ranges(layer) for layer in layers], axis=0)
    gain = 0.0
    if alpha == "auto":
        if channels.rows < _ENOUGH:
            raise Unabsorbed(f"calibration saw {channels.rows} values of each channel, too few to know the largest")
        factor, gain = best_smoothing(channels, weights, layers, per_channel)
        if gain >= 1.0:
            raise Unabsorbed("no share of the range that moves makes the expected error smaller")
    else:
        factor = smoothing(channels.amax, weights, alpha)
    try:
        divide_where_made(value, layers, factor, seen)
    except Unabsorbed as reason:
        parted = _joins_product(value)
        if gain > (_WORTH_A_KERNEL if parted else _WORTH):
            cost = ", and a Mul parts it from the product in front" if parted else ""
            raise Unabsorbed(f"{reason}, and the expected error would fall by {1 - gain:.0%} only{cost}") from None
        divide_by_node(value, layers, factor, seen)


def _joins_product(value: ir.Value) -> bool:
    """Whether kernels compute the value together with a linear layer: an activation function behind its bias."""
    node = value.producer()
    if node is None or node.op_type not in _EPILOGUES or node.inputs[0] is None:
        return False
    before = node.inputs[0].producer()
    if before is not None and before.op_type == "Add":
        before = next((p for v in before.inputs if v is not None and (p := v.producer()) is not None), None)
    return before is not None and before.op_type in {"MatMul", "Gemm"}


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


def best_smoothing(channels: Channels, weights: Array, layers: list[Layer], per_channel: bool) -> tuple[Array, float]:
    """The factors with the least expected error, and that error as a share of the one without smoothing.

    A value rounded to steps of D is off by D^2 / 12 in the mean square. An activation's steps are as large as its
    largest channel, and reach the output through the weights; a weight's steps are as large as the largest weight of
    its output channel (of all, without `per_channel`), and reach the output through the activation. Up to a factor,

        error = max_j x_j^2 sum_jo w_jo^2 + sum_o max_j w_jo^2 sum_j E[x_j^2].
    """
    found = [array for layer in layers if (array := _matrix(layer)) is not None]
    together = np.concatenate(found)
    norms = np.square(together, dtype=np.float64).sum(axis=0)
    magnitude = np.abs(together, dtype=np.float32)
    square = mean_squares(channels)

    def error(factor: Array) -> float:
        steps = (magnitude * factor.astype(np.float32)).max(axis=1).astype(np.float64)
        if not per_channel:
            at = np.cumsum([0, *(len(one) for one in found)])
            steps = np.concatenate([np.full(b - a, steps[a:b].max()) for a, b in pairwise(at)])
        activation = (channels.amax / factor).max() ** 2 * (norms * factor**2).sum()
        return float(activation + np.square(steps).sum() * (square / factor**2).sum())

    plain = error(np.ones(len(weights)))
    tried = [smoothing(channels.amax, weights, alpha) for alpha in _ALPHAS]
    errors = [error(factor) for factor in tried]
    least = int(np.argmin(errors))
    return tried[least], errors[least] / plain if plain else 1.0


def _matrix(layer: Layer) -> Array | None:
    array = constant(layer.node.inputs[1])
    found = None if array is None else matrices(array, layer)
    return None if found is None else found[0]


def weight_ranges(layer: Layer) -> Array:
    """[C], the largest weight of every input channel. Raises Unabsorbed where the weight cannot be changed."""
    weight = layer.node.inputs[layer.weight or 0]
    found = None
    if layer.weight == 1 and editable(weight) and (array := constant(weight)) is not None:
        found = ranges(array, layer)
    if found is None:
        raise Unabsorbed(f"the weight of {layer.node.op_type} {layer.node.name} is shared, or no matrix of its own")
    return found
