"""Putting QuantizeLinear and DequantizeLinear where the placement wants them.

One Q/DQ pair a tensor, one DQ a weight, however many read them; their origin is that of the first reader. Weights
are stored quantized; every zero point is 0. Scales are FLOAT here, holding values that the compute dtype holds
exactly; `casts` retypes them with the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from aot import origins
from aot.errors import GraphError
from aot.precision.formats import Float, Quantized
from aot.precision.placement import Site
from aot.precision.scales import Array, stored, weight_scales


def insert(graph: ir.Graph, sites: Sequence[Site], form: Quantized, compute: Float) -> None:
    """Change the graph. Sites must be in node order, for a pair is put in front of its first reader.

    Raises GraphError for a weight that holds NaN or infinity.
    """
    order = {node: i for i, node in enumerate(graph)}
    inserter = _Inserter(graph, form, compute)
    for site in sorted(sites, key=lambda s: (order[s.node], s.index)):
        value = site.node.inputs[site.index]
        assert value is not None
        quantized = inserter.weight(value, site) if site.scale is None else inserter.activation(value, site)
        site.node.replace_input_with(site.index, quantized)
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
            del graph.initializers[name]


class _Inserter:
    def __init__(self, graph: ir.Graph, form: Quantized, compute: Float) -> None:
        self.graph = graph
        self.form = form
        self.compute = compute
        self.done: dict[tuple[ir.Value, int | None], ir.Value] = {}
        self.zeros: dict[int | None, ir.Value] = {}
        self.names = {value.name for node in graph.all_nodes() for value in node.outputs} | set(graph.initializers)
        self.names |= {value.name for value in graph.inputs}

    def activation(self, value: ir.Value, site: Site) -> ir.Value:
        """x -> Q -> DQ, one scale."""
        key = (value, None)
        if key not in self.done:
            assert site.scale is not None
            scale = self._initializer(f"{value.name}_scale", np.asarray(site.scale, np.float32), ir.DataType.FLOAT)
            zero = self._zero(None)
            attributes = {"saturate": 1} if self.form.numpy.kind != "i" else {}
            q = self._node("QuantizeLinear", [value, scale, zero], attributes, value, self.form.onnx, site.node)
            self.done[key] = self._node("DequantizeLinear", [q, scale, zero], {}, value, ir.DataType.FLOAT, site.node)
        return self.done[key]

    def weight(self, value: ir.Value, site: Site) -> ir.Value:
        """A quantized initializer -> DQ."""
        key = (value, site.axis)
        if key not in self.done:
            source = value.const_value
            assert source is not None
            array = np.asarray(source.numpy(), np.float32)
            if not bool(np.isfinite(array).all()):
                raise GraphError(
                    f"the weight '{value.name}' holds NaN or infinity",
                    where=origins.where_of(site.node),
                    fix="check the checkpoint that the model loads",
                )
            scales = weight_scales(array, site.axis, self.form, self.compute)
            suffix = "" if site.axis is None else f"_axis{site.axis}"
            scale = self._initializer(f"{value.name}_scale{suffix}", scales, ir.DataType.FLOAT)
            zero = self._zero(None if site.axis is None else array.shape[site.axis])
            kept = self._lazily(f"{value.name}_{self.form.name}{suffix}", source, scales, site.axis)
            attributes = {} if site.axis is None else {"axis": site.axis}
            self.done[key] = self._node(
                "DequantizeLinear", [kept, scale, zero], attributes, value, ir.DataType.FLOAT, site.node
            )
        return self.done[key]

    def _lazily(self, name: str, source: ir.TensorProtocol, scales: Array, axis: int | None) -> ir.Value:
        """The stored weight, computed when the file is written: memory holds one weight at a time."""
        form = self.form

        def make() -> ir.TensorProtocol:
            array = np.asarray(source.numpy(), np.float32)
            return ir.tensor(stored(array, scales, axis, form), dtype=form.onnx, name=name)

        name = self._unique(name)
        shape = ir.Shape(source.shape.numpy())
        value = ir.Value(name=name, shape=shape, type=ir.TensorType(form.onnx))
        value.const_value = ir.LazyTensor(make, form.onnx, shape, name=name)
        self.graph.register_initializer(value)
        return value

    def _initializer(self, name: str, array: Array, dtype: ir.DataType) -> ir.Value:
        name = self._unique(name)
        tensor = ir.tensor(array, dtype=dtype, name=name)
        value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(dtype), const_value=tensor)
        self.graph.register_initializer(value)
        return value

    def _unique(self, base: str) -> str:
        """A name that no value has: a model may call a constant of its own `x_scale`."""
        name, count = base, 1
        while name in self.names:
            name, count = f"{base}_{count}", count + 1
        self.names.add(name)
        return name

    def _zero(self, length: int | None) -> ir.Value:
        """The zero point, shared: a scalar, or a vector for per-channel scales."""
        if length not in self.zeros:
            array = np.zeros(() if length is None else (length,), self.form.numpy)
            name = f"{self.form.name}_zero" + ("" if length is None else f"_{length}")
            self.zeros[length] = self._initializer(name, array, self.form.onnx)
        return self.zeros[length]

    def _node(
        self,
        op: str,
        inputs: list[ir.Value],
        attributes: dict[str, int],
        of: ir.Value,
        dtype: ir.DataType,
        before: ir.Node,
    ) -> ir.Value:
        ending = "quantized" if op == "QuantizeLinear" else "dequantized"
        ending += f"_axis{attributes['axis']}" if "axis" in attributes else ""
        name = self._unique(f"{of.name}_{ending}")
        result = ir.Value(name=name, shape=of.shape, type=ir.TensorType(dtype))
        node = ir.node(op, inputs, attributes, outputs=[result], name=f"{op}_{name}")
        origins.hand_on(before, node)
        self.graph.insert_before(before, node)
        return result
