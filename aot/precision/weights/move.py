"""Dividing the activation of layers by a factor for each channel, and multiplying their weights by it in return."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from aot import origins
from aot.precision.layers import Layer
from aot.precision.reading import constant, consumers
from aot.precision.weights.absorb import Unabsorbed, absorb, carry_out, rescale, unique
from aot.precision.weights.layers import gains
from aot.precision.weights.seen import Seen

Array = np.ndarray[Any, Any]

DIVIDED = "aot.divided"
"""In the metadata of a value whose channels were divided: it is no longer what it is in the graph as that came, and is
not compared with it."""


def divide_where_made(value: ir.Value, layers: list[Layer], factor: Array, seen: Seen) -> None:
    """Divide `value` by the factors of its channels in what computes it. Layers are all that read it.

    factor: [C], of axis 1 of a convolution's input, else of the last. Raises Unabsorbed, having changed nothing, where
    the value cannot be divided.
    """
    readers = [layer.node for layer in layers]
    other = next((n for n in consumers(value) if n not in readers), None)
    if other is not None:
        raise Unabsorbed(f"{value.name} is also read by {other.op_type} {other.name}")
    found = absorb(value, _shaped(value, layers[0], factor), readers)
    carry_out(found)
    for each in found.divided:
        each.metadata_props[DIVIDED] = "by channel"
    seen.divide(found.divided, _multiply(value, layers, factor, seen))


def divide_by_node(value: ir.Value, layers: list[Layer], factor: Array, seen: Seen) -> None:
    """Divide `value` by the factors of its channels, [C], in a Mul that the layers, in graph order, then read."""
    first = layers[0].node
    graph = first.graph
    assert isinstance(graph, ir.Graph)
    name = unique(graph, f"{value.name}_smoothing")
    shaped = _shaped(value, layers[0], factor)
    array = (1 / shaped).astype(np.float32).reshape(shaped.shape[shaped.shape.index(len(factor)) :])
    tensor = ir.tensor(array, name=name)
    held = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
    graph.register_initializer(held)
    result = ir.Value(name=f"{name}_output", shape=value.shape, type=ir.TensorType(ir.DataType.FLOAT))
    node = ir.node("Mul", [value, held], outputs=[result], name=name)
    origins.hand_on(first, node)
    graph.insert_before(first, node)
    for layer in layers:
        layer.node.replace_input_with(layer.activation, result)
    seen.copy(value, result)
    seen.divide({result: _shaped(result, layers[0], factor)}, _multiply(value, layers, factor, seen))


def _shaped(value: ir.Value, layer: Layer, factor: Array) -> Array:
    assert value.shape is not None
    rank = len(value.shape)
    axis = 1 if layer.node.op_type == "Conv" else rank - 1
    return factor.reshape([-1 if i == axis else 1 for i in range(rank)])


def _multiply(value: ir.Value, layers: list[Layer], factor: Array, seen: Seen) -> Array:
    """Multiply the weights; returns what each channel weighs from then on, [C], all alike where nobody asks."""
    gain = np.ones(len(factor))
    for layer in layers:
        rescale(layer.node, 1, _over_inputs(factor, layer))
        array = constant(layer.node.inputs[1]) if seen.weighted(value) else None
        part = None if array is None else gains(array, layer)
        gain = gain if part is None else gain + part
    return gain


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
