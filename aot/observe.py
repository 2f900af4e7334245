"""Which values of a graph calibration looks at, and how a batch is cut so that they fit in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from aot import origins
from aot.precision.reading import constant
from aot.readings import readings_of
from aot.statistics import Reading

if TYPE_CHECKING:
    from aot.arrays import Arrays

# Ops that move values and change none: what they give has the range of what they take.
_MOVES = ("Reshape", "Transpose", "Unsqueeze", "Squeeze", "Flatten", "Identity", "Expand")
# Ops whose result is finite where their inputs are.
_LINEAR = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Add")
# What the counts of a feature map are taken from at the least, of each sample: places, and values in all channels.
_PLACES, _VALUES = 16, 8192
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)


@dataclass(frozen=True)
class Observed:
    """What to observe. values: names, in graph order. alias: name -> the observed value with the same range.

    readings: those of the values that layers read, or residual adds, and how: the ones to observe closely.
    cut: feature maps that a Relu or Clip made, nothing below 0 in them, which are looked at inside the graph.
    lattice: name -> the step along height and width at which the counts of a feature map are taken.
    places: name -> where the value is made, for messages. shapes: name -> its dims. inputs: the graph's inputs.
    """

    values: tuple[str, ...]
    alias: Mapping[str, str]
    readings: Mapping[str, Reading]
    cut: frozenset[str]
    lattice: Mapping[str, int]
    places: Mapping[str, str]
    shapes: Mapping[str, tuple[int | str | None, ...]]
    inputs: Mapping[str, tuple[int | str | None, ...]]

    def bytes_needed(self, batch: Arrays) -> int:
        """Bytes of all observed values for this batch, at four a number.

        A dim that shape inference could not name counts as the largest dim of the inputs.
        """
        sizes = self._sizes(batch)
        largest = max(sizes.values(), default=1)

        def size(dim: int | str | None) -> int:
            return dim if isinstance(dim, int) else sizes.get(dim or "", largest)

        return sum(4 * math.prod(map(size, self.shapes[name])) for name in self.values)

    def parts(self, batch: Arrays, limit: int, beside: int = 1) -> Iterator[Arrays]:
        """The batch in parts, cut along its batch dim, so that the observed values of each take at most `limit` bytes;
        in a multiple of `beside` parts, about, where so many run side by side.

        The batch dim is the symbolic first dim that inputs share and that appears nowhere else in them. A part has
        one sample at least; a graph without a batch dim is not cut, nor is one with an input of other symbolic dims
        only: a file may call one batch by two names.
        """
        first = {dims[0] for dims in self.inputs.values() if dims and isinstance(dims[0], str)}
        rest = {dim for dims in self.inputs.values() for dim in dims[1:]}
        other = [
            dims for dims in self.inputs.values() if not first & set(dims) and any(isinstance(d, str) for d in dims)
        ]
        count = beside * max(1, -(-self.bytes_needed(batch) // (limit * beside)))
        if count == 1 or len(first) != 1 or first & rest or other:
            yield batch
            return
        (axis,) = first
        cut = [name for name, dims in self.inputs.items() if dims and dims[0] == axis and name in batch]
        samples = len(batch[cut[0]])
        step = max(1, samples // count)
        for start in range(0, samples, step):
            yield {**batch, **{name: batch[name][start : start + step] for name in cut}}

    def _sizes(self, batch: Arrays) -> dict[str, int]:
        sizes = {}
        for name, dims in self.inputs.items():
            for dim, size in zip(dims, batch[name].shape if name in batch else (), strict=False):
                if isinstance(dim, str):
                    sizes[dim] = size
        return sizes


def float_values(path: Path, gains: bool = True) -> Observed:
    """Every float value that the main graph of an ONNX file computes or is fed; constants are left out.
    gains: False leaves those of the readings out.

    What only a Relu or Clip reads is known by what comes out of it: what is cut off matters to nobody, and looking at
    it would keep the activation from joining the layer's kernel.
    """
    graph = ir.load(path).graph
    values: list[str] = []
    alias: dict[str, str] = {}
    places: dict[str, str] = {}
    shapes: dict[str, tuple[int | str | None, ...]] = {}
    cut: set[str] = set()
    read = readings_of(graph, gains)
    # The channels of a moved value are not those of what it was moved from: it is observed for itself.
    apart = {name for name, reading in read.items() if reading.axis is not None}
    for fed in graph.inputs:
        if fed.dtype in _FLOATS and not fed.is_initializer():
            values.append(fed.name or "")
            places[fed.name or ""] = f"input '{fed.name}'"
            shapes[fed.name or ""] = _dims(fed)
    for node in graph:
        source = node.inputs[0].name if node.domain == "" and node.op_type in _MOVES and node.inputs[0] else None
        for output in node.outputs:
            name = output.name or ""
            if not name or output.dtype not in _FLOATS or output.shape is None:
                continue
            places[name] = origins.where_of(node)
            known = alias.get(source or "", source)
            if known in shapes and name not in apart:
                alias[name] = known or ""
                continue
            values.append(name)
            shapes[name] = _dims(output)
            if (before := _cut_off(node)) is not None and before.name in shapes:
                values.remove(before.name)
                alias[before.name] = name
                if len(shapes[name]) == 4 and all(isinstance(dim, int) for dim in shapes[name][1:]):
                    cut.add(name)
    inputs = {value.name or "": _dims(value) for value in graph.inputs}
    readings: dict[str, Reading] = {}
    for name, reading in read.items():
        home = alias.get(name, name)
        if home in shapes and (home not in readings or reading.axis is not None):
            readings[home] = reading
    lattice = {name: step for name in readings if (step := _step(shapes[name])) > 1}
    return Observed(tuple(values), alias, readings, frozenset(cut), lattice, places, shapes, inputs)


def _cut_off(node: ir.Node) -> ir.Value | None:
    """What a Relu or a Clip at 0 reads, where nothing else does and where it is finite if the layer's inputs are."""
    value = node.inputs[0] if node.inputs else None
    producer = value.producer() if value is not None else None
    if value is None or producer is None or node.domain != "" or len(value.uses()) != 1 or value.is_graph_output():
        return None
    below = node.op_type == "Clip" and constant(node.inputs[1] if len(node.inputs) > 1 else None)
    if node.op_type != "Relu" and (below is False or below is None or below.size != 1 or float(below.item()) != 0):
        return None
    weights = [array for operand in producer.inputs if (array := constant(operand)) is not None]
    if producer.op_type not in _LINEAR or not all(np.isfinite(array).all() for array in weights):
        return None
    return value


def _step(dims: tuple[int | str | None, ...]) -> int:
    """The largest odd step that leaves enough of a feature map [N, C, H, W]; odd, so that it meets the rows and columns
    of every parity. 1 for any other value."""
    sizes = [dim for dim in dims[1:] if isinstance(dim, int)]
    if len(dims) != 4 or len(sizes) != 3:
        return 1
    channels, height, width = sizes
    enough = max(_PLACES, _VALUES // max(channels, 1))
    steps = range(1, max(height, width, 1) + 1, 2)
    return max((step for step in steps if -(-height // step) * -(-width // step) >= enough), default=1)


def _dims(value: ir.Value) -> tuple[int | str | None, ...]:
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape or ())
