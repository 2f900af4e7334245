"""Giving a FLOAT graph its compute dtype: values are retyped, initializers converted, and casts put where they must be.

Rules: graph inputs and outputs keep their dtype; a value gets at most one cast for each dtype its readers want;
no cast is left that changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import onnx_ir as ir

from aot import origins
from aot.precision.formats import Float
from aot.precision.names import Names
from aot.precision.reading import is_constant, is_float
from aot.precision.schemas import Slots, slots

# These take any dtype and give the same answer, so they read a value as it is.
_INDIFFERENT = frozenset({"Cast", "Shape", "Size"})


def retype(
    graph: ir.Graph, compute: Float, opset: int, wide: Collection[ir.Node], clamp: Mapping[ir.Value, float]
) -> None:
    """Make every node outside `wide` compute in `compute`; clamp the initializers of `clamp` on the way."""
    nodes = list(graph)
    narrow = {node: _narrow(node, compute, opset, wide) for node in nodes}
    _Retyping(graph, compute, clamp).apply(nodes, narrow)
    _drop_idle_casts(graph)


def _narrow(node: ir.Node, compute: Float, opset: int, wide: Collection[ir.Node]) -> Slots:
    found = None if node in wide else slots(node, compute.onnx, opset)
    return found or Slots((False,) * len(node.inputs), (False,) * len(node.outputs))


class _Retyping:
    """One run over a graph. `floats`: the values that were FLOAT at the start."""

    def __init__(self, graph: ir.Graph, compute: Float, clamp: Mapping[ir.Value, float]) -> None:
        self.graph = graph
        self.compute = compute
        self.clamp = clamp
        self.made: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}
        self.names = Names(graph)
        self.first = next(iter(graph), None)

    def apply(self, nodes: list[ir.Node], narrow: Mapping[ir.Node, Slots]) -> None:
        floats = {v for n in self.graph.all_nodes() for v in (*n.inputs, *n.outputs) if v is not None and is_float(v)}
        floats.update(v for v in (*self.graph.inputs, *self.graph.outputs) if is_float(v))
        outputs = [(i, v) for i, v in enumerate(self.graph.outputs) if v in floats and not is_constant(v)]
        for node in nodes:
            for result, may in zip(node.outputs, narrow[node].outputs, strict=True):
                if may:
                    # A new type object: values that were copied may share theirs.
                    result.type = ir.TensorType(self.compute.onnx)
                    _retype_attributes(node, self.compute)
        for node in nodes:
            for i, value in enumerate(node.inputs):
                if value is None or value not in floats:
                    continue
                if node.op_type in _INDIFFERENT and not is_constant(value):
                    continue
                wanted = self.compute.onnx if narrow[node].inputs[i] else ir.DataType.FLOAT
                node.replace_input_with(i, self.as_dtype(value, wanted, node))
        for node in self.graph.all_nodes():
            if node.graph is not self.graph:
                for i, value in enumerate(node.inputs):
                    if value is not None and value in floats and value.graph is self.graph:
                        node.replace_input_with(i, self.as_dtype(value, ir.DataType.FLOAT, node))
        for i, output in outputs:
            if output.dtype != ir.DataType.FLOAT:
                self._restore_output(i, output)
        self._drop_unread_initializers()

    def as_dtype(self, value: ir.Value, wanted: ir.DataType, reader: ir.Node) -> ir.Value:
        """The value in that dtype: itself, a converted initializer, or one cast behind its producer, whose origin is
        that of the first reader that asked for it."""
        key = (value, wanted)
        if key not in self.made:
            if is_constant(value):
                self.made[key] = self._convert(value, wanted)
            elif value.dtype == wanted:
                self.made[key] = value
            else:
                self.made[key] = self._cast(value, wanted, reader)
        return self.made[key]

    def _convert(self, value: ir.Value, wanted: ir.DataType) -> ir.Value:
        tensor = value.const_value
        assert tensor is not None
        if wanted == ir.DataType.FLOAT:
            return value
        name = self.names.unique(f"{value.name}_{self.compute.name}")
        converted = ir.Value(name=name, shape=value.shape, type=ir.TensorType(wanted))
        limit = self.clamp.get(value)

        def make() -> ir.TensorProtocol:
            array = np.asarray(tensor.numpy())
            if limit is not None:
                array = np.where(np.isfinite(array), np.clip(array, -limit, limit), array)
            return ir.tensor(array.astype(self.compute.numpy), dtype=wanted, name=name)

        converted.const_value = ir.LazyTensor(make, wanted, ir.Shape(tensor.shape.numpy()), name=name)
        self.graph.register_initializer(converted)
        return converted

    def _cast(self, value: ir.Value, wanted: ir.DataType, serves: ir.Node | None) -> ir.Value:
        suffix = "fp32" if wanted == ir.DataType.FLOAT else self.compute.name
        name = self.names.unique(f"{value.name}_{suffix}")
        result = ir.Value(name=name, shape=value.shape, type=ir.TensorType(wanted))
        node = ir.node("Cast", [value], {"to": wanted}, outputs=[result], name=f"Cast_{name}")
        if serves is not None:
            origins.hand_on(serves, node)
        self._insert_after(value.producer(), node)
        return result

    def _insert_after(self, producer: ir.Node | None, node: ir.Node) -> None:
        if producer is not None:
            self.graph.insert_after(producer, node)
        elif self.first is not None:
            self.graph.insert_before(self.first, node)
        else:
            self.graph.append(node)

    def _restore_output(self, index: int, value: ir.Value) -> None:
        """Give the output its dtype and its name back; the value inside gets another name."""
        outer = value.name
        assert outer is not None
        cast = self.made.get((value, ir.DataType.FLOAT)) or self._cast(value, ir.DataType.FLOAT, value.producer())
        value.name = self.names.unique(f"{outer}_{self.compute.name}")
        cast.name = outer
        self.graph.outputs[index] = cast

    def _drop_unread_initializers(self) -> None:
        for name, value in list(self.graph.initializers.items()):
            if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
                del self.graph.initializers[name]
        # A converted initializer takes over the name of one that is gone, so that weights keep their names.
        for (old, wanted), new in self.made.items():
            if wanted != ir.DataType.FLOAT and is_constant(new) and old.name not in self.graph.initializers:
                _rename_initializer(self.graph, new, str(old.name))


def _rename_initializer(graph: ir.Graph, value: ir.Value, name: str) -> None:
    old = graph.initializers.pop(str(value.name))
    old.name = name
    graph.initializers[name] = old


def _retype_attributes(node: ir.Node, compute: Float) -> None:
    """Make attributes that name the output's dtype, or hold its value, agree with the compute dtype."""
    for key in ("to", "dtype"):
        attribute = node.attributes.get(key)
        if attribute is not None and attribute.as_int() == ir.DataType.FLOAT:
            node.attributes[key] = ir.AttrInt64(key, int(compute.onnx))
    if node.op_type == "ConstantOfShape":
        held = node.attributes.get("value")
        array = np.zeros(1, np.float32) if held is None else held.as_tensor().numpy()
        node.attributes["value"] = ir.AttrTensor("value", ir.tensor(array.astype(compute.numpy), dtype=compute.onnx))
    elif node.op_type in {"EyeLike", "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike"}:
        node.attributes["dtype"] = ir.AttrInt64("dtype", int(compute.onnx))


def _drop_idle_casts(graph: ir.Graph) -> None:
    """Remove casts to the dtype their input has, and join a cast with the cast before it where nothing is lost."""
    for node in list(graph):
        if node.op_type != "Cast" or node.inputs[0] is None:
            continue
        source, result = node.inputs[0], node.outputs[0]
        if source.dtype == result.dtype and not result.is_graph_output():
            result.replace_all_uses_with(source)
            graph.remove(node, safe=True)
