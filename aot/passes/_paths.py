"""From a linear layer to what reads its result, over nodes that only move or part it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from aot.passes._edit import array, attribute, dims, made_by, only_user
from aot.passes._linear import Layer, channel_vector, layer_of

Array = np.ndarray[Any, Any]

_VIEWS = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Split")


@dataclass(frozen=True)
class Path:
    """layer: None where the path begins elsewhere. start: what it begins with. steps: the values on the way, that of
    the layer's first reader first. reader: of the layer's result; all are in its graph, and nothing else reads them.
    """

    start: ir.Value | None
    layer: Layer | None
    steps: tuple[ir.Value, ...]
    reader: ir.Node

    def channels(self, constant: Array, fill: float) -> Array | None:
        """A constant that the end of the path is combined with, as one number a channel of the layer, with `fill` for
        channels that are on other paths. None where it differs along other axes than the channels."""
        layer = self.layer
        assert layer is not None
        if not self.steps:
            return channel_vector(constant, layer.outputs, layer.inner, layer.rank)
        shape = dims(self.steps[-1])
        if shape is None or constant.ndim > len(shape):
            return None
        if constant.size == 1:
            mask = self._mask()
            return None if mask is None else np.where(mask, constant.reshape(()), fill)
        full: Array | None = constant.reshape((1,) * (len(shape) - constant.ndim) + constant.shape)
        for step in reversed(self.steps):
            full = _before_view(full, step) if full is not None else None
        return channel_vector(full, layer.outputs, layer.inner, layer.rank)

    def _mask(self) -> Array | None:
        """Which channels of the layer are on the path; None where that cannot be told."""
        layer = self.layer
        assert layer is not None
        parted = [index for index, step in enumerate(self.steps) if made_by(step, "Split")]
        if not parted:
            return np.ones(layer.outputs, bool)
        if len(parted) > 1 or layer.inner or layer.rank is None:
            return None
        axes: list[_Run | None] = [*[None] * (layer.rank - 1), (layer.outputs, 1)]
        for step in self.steps[: parted[0]]:
            axes = _carried(step, axes)
        step = self.steps[parted[0]]
        split = step.producer()
        assert split is not None
        run, part = axes[attribute(split, "axis", 0)] if axes else None, _part(split, step)
        if run is None or part is None:
            return None
        size, stride = run
        index = np.arange(layer.outputs) // stride % size
        mask: Array = (index >= part[0]) & (index < part[1])
        return mask


def path_to(value: ir.Value | None, reader: ir.Node) -> Path:
    """The longest path that ends in what `reader` reads as `value`."""
    steps: list[ir.Value] = []
    node = made_by(value, *_VIEWS)
    while node is not None and value is not None and only_user(value) is reader and node.graph is reader.graph:
        steps.insert(0, value)
        reader, value = node, node.inputs[0]
        node = made_by(value, *_VIEWS)
    return Path(value, layer_of(value, reader), tuple(steps), reader)


def _before_view(constant: Array, step: ir.Value) -> Array | None:
    """A constant behind a view as it is in front of it, for views that order axes, and add and drop those of one."""
    node = step.producer()
    if node is None or node.op_type not in ("Transpose", "Squeeze", "Unsqueeze", "Identity"):
        return None
    if node.op_type == "Identity":
        return constant
    if node.op_type == "Transpose":
        return constant.transpose(np.argsort(attribute(node, "perm", range(constant.ndim)[::-1])))
    axes = array(node.inputs[1]) if len(node.inputs) > 1 else None
    if axes is None:
        return None
    if node.op_type == "Squeeze":
        return np.expand_dims(constant, tuple(int(axis) for axis in axes))
    at = tuple(int(axis) for axis in axes)
    return np.squeeze(constant, at) if all(constant.shape[axis] == 1 for axis in at) else None


_Run = tuple[int, int]
"""How many indices an axis has, and how many channels lie between two of them."""


def _carried(step: ir.Value, axes: list[_Run | None]) -> list[_Run | None]:
    """The axes behind a view; empty where they cannot be told."""
    node, shape = step.producer(), dims(step)
    if node is None or shape is None:
        return []
    if node.op_type == "Transpose" and len(axes) == len(shape):
        return [axes[axis] for axis in attribute(node, "perm", range(len(axes))[::-1])]
    last = axes[-1] if axes else None
    if node.op_type != "Reshape" or last is None or any(axis is not None for axis in axes[:-1]) or last[1] != 1:
        return []
    # The channels, which come last, in several axes.
    runs: list[_Run | None] = []
    stride = 1
    for size in reversed(shape):
        if not isinstance(size, int) or stride == last[0]:
            break
        runs.insert(0, (size, stride))
        stride *= size
    return [*[None] * (len(shape) - len(runs)), *runs] if stride == last[0] else []


def _part(split: ir.Node, step: ir.Value) -> tuple[int, int] | None:
    """Where along its axis a part begins and ends."""
    sizes = array(split.inputs[1]) if len(split.inputs) > 1 else None
    index = next(index for index, output in enumerate(split.outputs) if output is step)
    if sizes is None:
        return None
    return int(sizes[:index].sum()), int(sizes[: index + 1].sum())
