"""What a graph holds: the contents of Constant nodes, and where all constants end up."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from aot.graph.state import walk

_SMALL = 1 << 12
"""Elements."""
_READABLE = {
    kind.value: kind.numpy().newbyteorder("<")
    for kind in ir.DataType
    if kind not in (ir.DataType.UNDEFINED, ir.DataType.STRING) and kind.bitwidth >= 8
}
"""The types of whole bytes, by their number in the format, as arrays have them."""


def constant_of(node: ir.Node) -> ir.TensorProtocol | None:
    """What a Constant node holds, None for any other."""
    if node.op_type != "Constant" or node.domain:
        return None
    held = node.attributes.data.get("value")
    # onnx_ir's own way is many times slower, but knows the other attributes.
    return held.value if held is not None else ir.convenience.get_const_tensor(node.outputs[0])


def lift_constants(model: ir.Model) -> int:
    """Make initializers of the main graph of what Constant nodes and the initializers of bodies hold; returns how many
    there were. Small ones that hold the same become one.

    Constants of strings, and those that are an output of a graph, stay.
    """
    lifted, read = 0, _Reading()
    shared: dict[ir.TensorProtocol, ir.Value] = {}
    removed: defaultdict[ir.Graph, list[ir.Node]] = defaultdict(list)
    for node in walk(model.graph):
        assert node.graph is not None
        if node.graph is not model.graph and node.graph not in removed:
            removed[node.graph] = []
            lifted += _move(node.graph, model.graph)
        tensor = constant_of(node)
        if tensor is None or tensor.dtype == ir.DataType.STRING or node.outputs[0].is_graph_output():
            continue
        if "value" not in node.attributes.data:
            tensor = ir.Tensor(tensor.numpy())  # what the attributes for single numbers hold lacks a proper shape
        tensor = read(tensor)
        value = shared.get(tensor)
        if value is None:
            value = shared[tensor] = initializer(model, node.outputs[0].name or "constant", tensor)
        node.outputs[0].replace_all_uses_with(value)
        removed[node.graph].append(node)
    for graph, nodes in removed.items():
        graph.remove(nodes, safe=True)
        lifted += len(nodes)
    return lifted


def _move(body: ir.Graph, graph: ir.Graph) -> int:
    """Hold the initializers of a body in the graph around it."""
    moved = [v for v in body.initializers.data.values() if not v.is_graph_input() and not v.is_graph_output()]
    for value in moved:
        assert value.name is not None
        del body.initializers[value.name]
        value.name = free_name(value.name, graph.initializers.data)
        graph.register_initializer(value)
    return len(moved)


def initializer(model: ir.Model, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """A new initializer of the main graph; its name is `name`, with a number where that is taken."""
    unique = free_name(name, model.graph.initializers.data)
    tensor.name = unique
    shape = tensor.shape if isinstance(tensor.shape, ir.Shape) else ir.Shape(tensor.shape.numpy())
    value = ir.Value(name=unique, shape=shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
    model.graph.register_initializer(value)
    return value


def free_name(name: str, taken: Collection[str]) -> str:
    """`name`, with a number where that is taken."""
    unique, count = name, 1
    while unique in taken:
        count += 1
        unique = f"{name}_{count}"
    return unique


def read_small(model: ir.Model) -> None:
    """Take small constants out of the messages that a file was parsed to, which parse and copy them at every access."""
    read = _Reading()
    for value in model.graph.initializers.data.values():
        if value.const_value is not None:
            value.const_value = read(value.const_value)


class _Reading:
    """Small constants as arrays; those of the same type, shape and bytes are the same tensor."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], ir.TensorProtocol] = {}

    def __call__(self, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        """The tensor itself where it is large, no message, or of strings or parts of bytes."""
        if not isinstance(tensor, ir.serde.TensorProtoTensor):
            return tensor
        raw = tensor.raw
        dims, dtype = tuple(raw.dims), _READABLE.get(raw.data_type)
        if dtype is None or math.prod(dims) > _SMALL:
            return tensor
        array = np.frombuffer(raw.raw_data, dtype).reshape(dims) if raw.HasField("raw_data") else tensor.numpy()
        key = dtype, dims, array.tobytes(), raw.doc_string
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = ir.Tensor(array, tensor.dtype, name=raw.name, doc_string=raw.doc_string)
        return found
