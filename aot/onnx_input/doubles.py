"""FP64, which TensorRT has no kernels for, as FP32."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from aot.onnx_input._instead import standard

_DTYPES = ("to", "dtype", "output_dtype", "stash_type")


def narrow_doubles(model: ir.Model) -> list[str]:
    """Make FP32 of every FP64 value, weight and constant, in place; returns a sentence where there was any.

    Finite numbers beyond the range of FP32 become its ends, as masks hold them.
    """
    double, single = ir.DataType.DOUBLE, ir.DataType.FLOAT
    ports = [str(value.name) for value in (*model.graph.inputs, *model.graph.outputs) if value.dtype == double]
    sites = len(ports)
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.dtype == double:
            value.dtype = single
    for graph in model.graphs():
        for value in tuple(graph.initializers.values()):
            if value.const_value is not None and value.const_value.dtype == double:
                value.const_value = _narrowed(value.const_value)
                value.dtype = single
                sites += 1
        for node in graph:
            sites += _narrow_node(node)
    if not sites:
        return []
    at = f", inputs and outputs too: {', '.join(ports)}" if ports else ""
    return [f"FP64 is narrowed to FP32, for TensorRT computes no FP64{at}"]


def _narrow_node(node: ir.Node) -> int:
    double, single = ir.DataType.DOUBLE, ir.DataType.FLOAT
    sites = 0
    for out in node.outputs:
        if out.dtype == double:
            out.dtype = single
            sites += 1
    for name, attribute in tuple(node.attributes.items()):
        if attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype == double:
            node.attributes[name] = ir.AttrTensor(name, _narrowed(attribute.value))
            sites += 1
        elif name in _DTYPES and attribute.type == ir.AttributeType.INT and attribute.value == double:
            node.attributes[name] = ir.AttrInt64(name, int(single))
            sites += 1
    if sites and standard(node, "Constant"):
        node.outputs[0].const_value = None
    return sites


def _narrowed(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    numbers, ends = tensor.numpy(), np.finfo(np.float32)
    narrow = np.where(np.isinf(numbers), numbers, np.clip(numbers, ends.min, ends.max)).astype(np.float32)
    return ir.tensor(narrow.reshape(numbers.shape), name=tensor.name)
