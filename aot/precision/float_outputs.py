"""INT8 layers whose output goes on in floating point, where TensorRT 10.6 computes wrong values.

Both were measured on an H200, with weights stored in INT8 and dynamic batch; with the output quantized again,
or with one scale for the whole weight, the same layers agree with onnxruntime to a cosine of 0.9999:

- a depthwise convolution with one weight scale a channel: cosine 0.68 to the reference;
- a linear layer with one weight scale a channel, followed by GELU: infinities, and NaN after them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import onnx_ir as ir

from aot.precision.layers import describe
from aot.precision.reading import is_constant

if TYPE_CHECKING:
    from aot.precision.placement import Placed

_POINTWISE = {"Relu", "Clip", "LeakyRelu", "HardSwish", "Sigmoid", "Gelu", "Erf", "Mul", "Div", "Add", "Identity"}
_GELU = {"Gelu", "Erf"}
WIDE = "a depthwise convolution whose output is not quantized again: TensorRT 10.6 computes it wrong"
ONE_SCALE_DEPTHWISE = "one weight scale, for with more of them TensorRT 10.6 computes a float output wrong"
ONE_SCALE = "one weight scale, for with more of them TensorRT 10.6 overflows in the GELU behind it"


def settle(graph: ir.Graph, placed: Placed, sensitive: bool = False) -> None:
    """Take such depthwise convolutions back, and give such linear layers one weight scale. Changes `placed`.

    sensitive: give the convolutions one scale too, though their channels differ more than those of linear layers.

    Goes from the last node to the first, since a layer taken back leaves the output before it unquantized.
    """
    for node in reversed(list(graph)):
        layer = describe(node) if node in placed.quantized else None
        if layer is None or layer.weight is None:
            continue
        if not any(s.node is node and s.axis is not None for s in placed.sites):
            continue
        read = {(s.node, s.index) for s in placed.sites}
        if layer.depthwise and None in _ends(node.outputs[0], read):
            if sensitive:
                _one_scale(node, placed, ONE_SCALE_DEPTHWISE)
            else:
                placed.sites = [s for s in placed.sites if s.node is not node]
                placed.wide[node] = WIDE
                del placed.quantized[node]
        elif node.op_type in {"MatMul", "Gemm"} and _in_float_through_gelu(node.outputs[0], read):
            _one_scale(node, placed, ONE_SCALE)


def _one_scale(node: ir.Node, placed: Placed, reason: str) -> None:
    placed.sites = [replace(s, axis=None) if s.node is node else s for s in placed.sites]
    placed.quantized[node] = f"{placed.quantized[node].rpartition('; ')[0]}; {reason}"


def _ends(value: ir.Value, read: set[tuple[ir.Node, int]]) -> Iterator[ir.Node | None]:
    """Where a value goes, through pointwise operators: None for each reader that takes it in floating point."""
    if value.is_graph_output():
        yield None
    for use in value.uses():
        if (use.node, use.idx) in read:
            yield use.node
        elif use.node.op_type in _POINTWISE and all(v is value or v is None or is_constant(v) for v in use.node.inputs):
            yield from _ends(use.node.outputs[0], read)
        else:
            yield None


def _in_float_through_gelu(value: ir.Value, read: set[tuple[ir.Node, int]]) -> bool:
    """Whether a GELU is computed from the value and what comes out of it stays in floating point somewhere."""
    for use in value.uses():
        if use.node.op_type in _GELU:
            return None in _ends(use.node.outputs[0], read)
        if use.node.op_type in _POINTWISE and _in_float_through_gelu(use.node.outputs[0], read):
            return True
    return False
