"""Putting QuantizeLinear and DequantizeLinear where the placement wants them.

One Q/DQ pair a tensor, one DQ a weight, however many read them; their origin is that of the first reader. Weights
are stored quantized; every zero point is 0. Scales are FLOAT here, holding values that the compute dtype holds
exactly; `casts` retypes them with the rest. How weights are rounded is the business of `weights/rounds.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from aot import origins
from aot.config import Weights
from aot.precision.formats import Float, Quantized
from aot.precision.names import Names
from aot.precision.placement import Site
from aot.precision.scales import Array, Grain, stored
from aot.precision.weights.rounds import Read, Rounds
from aot.precision.weights.seen import Seen
from aot.precision.weights.work import Work


def insert(
    graph: ir.Graph,
    sites: Sequence[Site],
    form: Quantized,
    compute: Float,
    options: Weights | None = None,
    seen: Seen | None = None,
) -> list[Work]:
    """Change the graph; say what was done to round weights well. Sites must be in node order, for a pair is put in
    front of its first reader. `seen`: what the options want to know of the inputs of layers.

    Raises GraphError for a weight that holds NaN or infinity.
    """
    order = {node: i for i, node in enumerate(graph)}
    options = options or Weights()
    rounds = Rounds(form, compute, options, seen)
    inserter = _Inserter(graph, form, rounds)
    # What layers read, before it is replaced.
    scales = {(site.node, site.index): site.scale for site in sites}
    reads = {site.node: Read.of(site.node, scales) for site in sites if site.scale is None}
    for site in sorted(sites, key=lambda s: (order[s.node], s.index)):
        value = site.node.inputs[site.index]
        assert value is not None
        if site.scale is None:
            quantized = inserter.weight(value, site, reads[site.node])
        else:
            quantized = inserter.activation(value, site)
        site.node.replace_input_with(site.index, quantized)
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
            del graph.initializers[name]
    return rounds.works


class _Inserter:
    def __init__(self, graph: ir.Graph, form: Quantized, rounds: Rounds) -> None:
        self.graph = graph
        self.form = form
        self.rounds = rounds
        self.done: dict[tuple[ir.Value, Grain], ir.Value] = {}
        self.zeros: dict[tuple[int, ...], ir.Value] = {}
        self.names = Names(graph)

    def activation(self, value: ir.Value, site: Site) -> ir.Value:
        """x -> Q -> DQ, one scale."""
        key = (value, Grain())
        if key not in self.done:
            assert site.scale is not None
            scale = self._initializer(f"{value.name}_scale", np.asarray(site.scale, np.float32), ir.DataType.FLOAT)
            zero = self._zero(())
            attributes = {} if self.form.whole else {"saturate": 1}
            q = self._node("QuantizeLinear", [value, scale, zero], attributes, value, self.form.onnx, site.node)
            self.done[key] = self._node("DequantizeLinear", [q, scale, zero], {}, value, ir.DataType.FLOAT, site.node)
        return self.done[key]

    def weight(self, value: ir.Value, site: Site, read: Read) -> ir.Value:
        """A quantized initializer -> DQ."""
        grain = self.rounds.grain(read, site.axis)
        key = (value, grain)
        if key not in self.done:
            source = value.const_value
            assert source is not None
            scales, values = self.rounds.quantize(value, grain, read)
            suffix = "" if grain.axis is None else f"_axis{grain.axis}"
            scale = self._initializer(f"{value.name}_scale{suffix}", scales, ir.DataType.FLOAT)
            zero = self._zero(scales.shape)
            kept = self._kept(f"{value.name}_{self.form.name}{suffix}", source, scales, grain, values)
            attributes = {} if grain.axis is None else {"axis": grain.axis}
            attributes |= {} if grain.block is None else {"block_size": grain.block}
            self.done[key] = self._node(
                "DequantizeLinear", [kept, scale, zero], attributes, value, ir.DataType.FLOAT, site.node
            )
        return self.done[key]

    def _kept(
        self, name: str, source: ir.TensorProtocol, scales: Array, grain: Grain, values: np.ndarray | None
    ) -> ir.Value:
        """The stored weight: as it was rounded, or computed when the file is written, so that memory holds one weight
        at a time."""
        form = self.form
        name = self.names.unique(name)

        def make() -> ir.TensorProtocol:
            array = np.asarray(source.numpy(), np.float32)
            return ir.tensor(stored(array, scales, grain, form), dtype=form.onnx, name=name)

        shape = ir.Shape(source.shape.numpy())
        value = ir.Value(name=name, shape=shape, type=ir.TensorType(form.onnx))
        if values is None:
            value.const_value = ir.LazyTensor(make, form.onnx, shape, name=name)
        else:
            value.const_value = ir.tensor(values, dtype=form.onnx, name=name)
        self.graph.register_initializer(value)
        return value

    def _initializer(self, name: str, array: Array, dtype: ir.DataType) -> ir.Value:
        name = self.names.unique(name)
        tensor = ir.tensor(array, dtype=dtype, name=name)
        value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(dtype), const_value=tensor)
        self.graph.register_initializer(value)
        return value

    def _zero(self, shape: tuple[int, ...]) -> ir.Value:
        """The zero point, shared: in the shape of the scales."""
        if shape not in self.zeros:
            name = "_".join([self.form.name, "zero", *map(str, shape)])
            self.zeros[shape] = self._initializer(name, np.zeros(shape, self.form.numpy), self.form.onnx)
        return self.zeros[shape]

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
        name = self.names.unique(f"{of.name}_{ending}")
        result = ir.Value(name=name, shape=of.shape, type=ir.TensorType(dtype))
        node = ir.node(op, inputs, attributes, outputs=[result], name=f"{op}_{name}")
        origins.hand_on(before, node)
        self.graph.insert_before(before, node)
        return result
