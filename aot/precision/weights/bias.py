"""Bias correction: what rounding adds to a layer's output on average is taken out through the bias.

The output of a layer whose weight W became Q(W), and whose input x became Q(x), is off by Q(W) Q(x) - W x; on average
over x that is

    (Q(W) - W) E[x] + Q(W) E[Q(x) - x],

one number an output channel, which its bias takes back. The first part is that of arXiv 1906.04721, 4.2; the second
is known of activations behind a Relu (`activations.py`).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from aot.precision.layers import Layer
from aot.precision.reading import constant, consumers, is_constant
from aot.precision.weights.absorb import Array, unique


def correct(layer: Layer, shift: Array) -> str | None:
    """Subtract `shift` ([outputs], in units of the product of input and weight) from the layer's output through its
    bias. Returns why that cannot be; None where it is done.

    A convolution or Gemm without bias gets one, which costs nothing; a MatMul has the Add behind it or none.
    """
    node = layer.node
    if node.op_type == "MatMul":
        return _through_add(node, shift)
    beta = node.attributes["beta"].as_float() if "beta" in node.attributes else 1.0
    alpha = node.attributes["alpha"].as_float() if "alpha" in node.attributes else 1.0
    known = node.inputs[2] if len(node.inputs) > 2 else None
    if known is not None and not is_constant(known):
        return f"its bias {known.name} is computed"
    if beta == 0:
        return "its bias counts for nothing (beta = 0)"
    bias = np.zeros(1) if known is None else np.asarray(constant(known), np.float64)
    name = f"{layer.node.name}_bias" if known is None else str(known.name)
    value = _constant(node, name, bias - shift * (alpha / beta))
    if known is not None:
        node.replace_input_with(2, value)
    else:
        node.resize_inputs(3)
        node.replace_input_with(2, value)
    return None


def _through_add(node: ir.Node, shift: Array) -> str | None:
    output = node.outputs[0]
    users = consumers(output)
    add = users[0] if len(users) == 1 and users[0].op_type == "Add" and not output.is_graph_output() else None
    index = next((i for i, v in enumerate(add.inputs) if is_constant(v)), None) if add is not None else None
    if add is None or index is None or add.inputs[1 - index] is not output:
        return "no bias is added behind it"
    known = add.inputs[index]
    array = constant(known)
    if known is None or array is None or array.ndim > len(output.shape or ()):
        return "no bias is added behind it"
    add.replace_input_with(index, _constant(add, str(known.name), array.astype(np.float64) - shift))
    return None


def _constant(node: ir.Node, name: str, array: Array) -> ir.Value:
    """A FLOAT initializer; what it replaces goes where nothing reads it."""
    assert isinstance(node.graph, ir.Graph)
    name = unique(node.graph, f"{name}_corrected")
    tensor = ir.tensor(array.astype(np.float32), name=name)
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(ir.DataType.FLOAT), const_value=tensor)
    node.graph.register_initializer(value)
    return value
