"""What rounding an activation behind a Relu does to it on average, channel by channel.

A rounding error is as often up as down only where values lie evenly between two numbers of the format. Behind a Relu
they thin out towards large ones; and where the input of the layer in front is zero, as much of it is behind another
Relu, a channel rests at one value, that of its bias: half of the values of MobileNetV2's last depthwise convolution
do, and all of them are rounded the same way.

Other activations are left alone: histograms are of magnitudes, and where they have both signs the channels' means say
little. Behind a GELU what was found so did not fit what rounding does (a correlation of 0.3 to 0.7 in MiniLM).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from aot.channels import SHIFT, Channels
from aot.precision.activations import errors, magnitudes
from aot.precision.formats import Quantized
from aot.precision.reading import constant
from aot.precision.weights.absorb import Array

if TYPE_CHECKING:
    from aot.statistics import Tensor

_LAYERS = {"Conv", "ConvTranspose", "Gemm"}
# Fewer values of a channel do not tell how much of it rests: those of a pooled one, one a picture, gate all of it.
_ENOUGH = 256


def mean_errors(tensor: Tensor, rest: Array, scale: float, form: Quantized) -> Array:
    """[C], E[Q(x) - x] of every channel of a tensor without negative values, float64.

    rest: [C], what `resting` found. Channels have coarse histograms, four bins an octave. What a channel has more in
    the bin of its resting value than in those beside it is taken to rest, where that is closer to the channel's mean;
    all else is spread within a bin as the whole tensor is, whose histogram is fine.
    """
    channels = tensor.channels
    assert channels is not None
    if tensor.histogram is None or channels.rows < _ENOUGH:
        return np.zeros(len(rest))
    counts = channels.counts.astype(np.float64)
    values, off = _within(tensor, channels, scale, form)
    bins = _bins(channels, rest)
    more = _more(channels, rest, bins)
    missing = channels.mean * channels.rows - counts @ values
    still = np.where(np.abs(missing - more * (rest - values[bins])) < np.abs(missing), more, 0.0)
    counts[np.arange(len(counts)), bins] -= still
    found: Array = counts @ off + still * errors(rest.astype(np.float32), scale, form)
    return found / channels.rows


def resting(value: ir.Value | None, size: int) -> Array | None:
    """[size], float64: the channels of a value where the layer in front of its Relu, or Clip from zero up, reads zeros:
    that of its bias. None for any other value, and without bias."""
    node = value.producer() if value is not None else None
    if node is None or node.op_type not in {"Relu", "Clip"} or node.inputs[0] is None:
        return None
    low, high = (0.0, None) if node.op_type == "Relu" else map(_number, (*node.inputs[1:], None, None)[:2])
    layer = node.inputs[0].producer()
    if low is None or low < 0 or layer is None or layer.op_type not in _LAYERS or len(layer.inputs) < 3:
        return None
    bias = constant(layer.inputs[2])
    return np.clip(bias.astype(np.float64), low, high) if bias is not None and bias.shape == (size,) else None


def _number(value: ir.Value | None) -> float | None:
    array = constant(value)
    return None if array is None or array.size != 1 else float(array.reshape(-1)[0])


def _bins(channels: Channels, values: Array) -> Array:
    """[C], in which of its coarse bins each channel has that value; the nearest there is."""
    found = np.searchsorted(channels.edges, values, side="right") - 1
    return np.clip(found, 0, channels.counts.shape[1] - 1)


def _more(channels: Channels, rest: Array, bins: Array) -> Array:
    """[C], how many more values each channel has in that bin than in those beside it, on average."""
    beside = np.pad(channels.counts.astype(np.float64), ((0, 0), (1, 1)))
    rows = np.arange(len(bins))
    more = beside[rows, bins + 1] - (beside[rows, bins] + beside[rows, bins + 2]) / 2
    seen = (rest > 0) & (rest <= channels.amax * (1 + 1e-6))
    return np.where(seen, np.maximum(more, 0.0), 0.0)


def _within(tensor: Tensor, channels: Channels, scale: float, form: Quantized) -> tuple[Array, Array]:
    """[n], the mean of the tensor's values within each coarse bin, and that of their errors."""
    size = channels.counts.shape[1]
    first, values, counts = magnitudes(tensor)
    error = errors(values, scale, form).mean(axis=1, dtype=np.float64)
    coarse = ((first + np.arange(len(counts))) >> SHIFT) - channels.first
    known = (coarse >= 0) & (coarse < size)
    total = np.maximum(np.bincount(coarse[known], counts[known], size), 1.0)
    middle = values.mean(axis=1, dtype=np.float64)
    mean, off = (np.bincount(coarse[known], (counts * of)[known], size) / total for of in (middle, error))
    return mean, off
