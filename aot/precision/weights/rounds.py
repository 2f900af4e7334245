"""How the weights of a graph are rounded: their scales, up or down, and what is left of the error on average."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from aot import origins
from aot.channels import Channels
from aot.config import Weights
from aot.errors import GraphError
from aot.precision.formats import Float, Quantized
from aot.precision.layers import Layer, describe
from aot.precision.scales import Grain, stored, weight_scales
from aot.precision.weights.absorb import Array
from aot.precision.weights.activations import mean_errors, resting
from aot.precision.weights.bias import correct
from aot.precision.weights.layers import contraction, matrices, weight_of
from aot.precision.weights.moments import second, spread, squares
from aot.precision.weights.rounding import round_adaptively
from aot.precision.weights.seen import Seen
from aot.precision.weights.work import Work

_NO_MATRIX = "its weight is no matrix over the channels of its input"


@dataclass(frozen=True)
class Read:
    """A layer and the value that it multiplies its weight with. scale: of the value, None where it is not rounded."""

    layer: Layer
    value: ir.Value | None
    scale: float | None = None

    @classmethod
    def of(cls, node: ir.Node, scales: Mapping[tuple[ir.Node, int], float | None]) -> Read:
        """Of a node that still reads both. scales: of the values that are rounded, by node and input."""
        layer = describe(node)
        assert layer is not None
        return cls(layer, node.inputs[layer.activation], scales.get((node, layer.activation)))


class Rounds:
    """Rounds one weight after another. works: what was done beyond rounding to the nearest."""

    def __init__(self, form: Quantized, compute: Float, options: Weights, seen: Seen | None) -> None:
        self.form = form
        self.compute = compute
        self.options = options
        self.seen = seen
        self.rounding, self.bias = Work("adaptive rounding"), Work("bias correction")
        self.works = [self.rounding] if options.rounding == "adaptive" else []
        self.works += [self.bias] if options.bias_correction else []

    def grain(self, read: Read, axis: int | None) -> Grain:
        """Which values share a scale: blocks along the axis that the layer sums over where the recipe wants them."""
        block = self.options.block
        if block is None or axis is None:
            return Grain(axis)
        return Grain(1 - axis, block)

    def quantize(self, value: ir.Value, grain: Grain, read: Read) -> tuple[Array, np.ndarray | None]:
        """The scales, and the values to store where they are not simply the nearest. Changes the bias of the layer
        where the recipe wants it to.

        Raises GraphError for a weight that holds NaN or infinity.
        """
        assert value.const_value is not None
        array = np.asarray(value.const_value.numpy(), np.float32)
        if not bool(np.isfinite(array).all()):
            raise GraphError(
                f"the weight '{value.name}' holds NaN or infinity",
                where=origins.where_of(read.layer.node),
                fix="check the checkpoint that the model loads",
            )
        channels = None if self.seen is None else self.seen.channels(read.value, contraction(read.layer))
        alone = len(value.uses()) == 1
        scales = weight_scales(array, grain, self.form, self.compute, self._importance(array, read.layer, channels))
        values = None
        if self.options.rounding == "adaptive":
            values = self._adaptive(array, scales, grain, read.layer, channels)
        if self.options.bias_correction:
            self._correct(array, scales, grain, values, read, channels, alone)
        return scales, values

    def _importance(self, array: Array, layer: Layer, channels: Channels | None) -> Array | None:
        """What an error in each weight does to the output: the mean square of what it is multiplied with."""
        if channels is None or matrices(array, layer) is None:
            return None
        square = squares(channels, layer, array.shape)
        full = np.broadcast_to(square[:, None, :], matrices(array, layer).shape)  # type: ignore[union-attr]
        return weight_of(full, layer, array.shape)

    def _adaptive(
        self, array: Array, scales: Array, grain: Grain, layer: Layer, channels: Channels | None
    ) -> np.ndarray | None:
        name = str(layer.node.name)
        matrix = matrices(array, layer)
        if matrix is None:
            self.rounding.left[name] = _NO_MATRIX
            return None
        moments = None
        if channels is not None:
            moments = second(channels, layer, array.shape)
        if moments is None:
            self.rounding.left[name] = "the products of its input's channels were not collected"
            return None
        steps = matrices(np.broadcast_to(grain.spread(scales, array.ndim), array.shape), layer)
        assert steps is not None
        chosen = round_adaptively(matrix, steps, moments, self.form.rounded)
        self.rounding.done.append(name)
        return weight_of(chosen, layer, array.shape).astype(self.form.numpy)

    def _correct(
        self,
        array: Array,
        scales: Array,
        grain: Grain,
        values: np.ndarray | None,
        read: Read,
        channels: Channels | None,
        alone: bool,
    ) -> None:
        layer = read.layer
        name = str(layer.node.name)
        if matrices(array, layer) is None:
            self.bias.left[name] = _NO_MATRIX
            return
        if channels is None:
            self.bias.left[name] = "the channels of its input were not observed"
            return
        if not alone:
            self.bias.left[name] = "its weight is shared by layers with other inputs"
            return
        values = stored(array, scales, grain, self.form) if values is None else values
        kept = values.astype(np.float32) * grain.spread(scales, array.ndim)
        shift = self._product(kept - array, layer, channels.mean)
        if read.scale is not None and self.seen is not None:
            tensor, rest = self.seen.tensor(read.value), resting(read.value, len(channels.amax))
            if tensor is not None and rest is not None:
                shift = shift + self._product(kept, layer, mean_errors(tensor, rest, read.scale, self.form))
        why = correct(layer, shift)
        if why is None:
            self.bias.done.append(name)
        else:
            self.bias.left[name] = why

    def _product(self, weight: Array, layer: Layer, inputs: Array) -> Array:
        """[outputs], float64: what the weight makes of one value a channel, [C]."""
        matrix = matrices(weight, layer)
        assert matrix is not None
        found: Array = np.einsum("goi,gi->go", matrix.astype(np.float64), spread(inputs, layer, weight.shape))
        return found.reshape(-1)
