"""Skip connections in INT8: `conv(...) + skip` as one kernel that reads and writes INT8.

TensorRT fuses an addition into the convolution in front of it, and gives the kernel the precision of the other operand
(«Working with Quantized Types»: quantize the residual input). So the skip input is quantized, and nothing may stand
between the convolution and the addition. Where both operands are convolutions, the one at the end of the longer path is
the block's own, as Model Optimizer and pytorch-quantization have it, and the shortcut's is quantized.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx_ir as ir

from aot.precision.layers import describe
from aot.precision.reading import consumers, is_constant, is_float

# What a quantizing kernel does on its way out, or what commutes with quantization.
_EPILOGUE = {"Relu", "Clip", "MaxPool", "Reshape", "Transpose", "Flatten", "Identity", "Squeeze", "Unsqueeze"}


class Residuals:
    """quantized: the nodes that are so far; read: the values that are quantized for one of them. Both may grow."""

    def __init__(self, graph: ir.Graph, quantized: Collection[ir.Node], read: Collection[ir.Value]) -> None:
        self.quantized = quantized
        self.read = read
        self.order = {node: i for i, node in enumerate(graph)}
        self.depth = _depths(graph)

    def skip(self, node: ir.Node) -> int | None:
        """The index of the skip input of an addition that fuses; None where it does not."""
        if node.op_type != "Add" or not all(is_float(v) and not is_constant(v) for v in node.inputs):
            return None
        left, right = node.inputs
        if left is None or right is None or left is right:
            return None
        fusing = [value for value in (left, right) if self._fuses(value)]
        if not fusing:
            return None
        last = max(fusing, key=self._length)
        return 1 if last is left else 0

    def refuse(self, skip: ir.Value) -> str | None:
        """Why quantizing the skip input costs more than the fusion gains; None where it is INT8 anyway."""
        if skip in self.read:
            return None
        source, value = skip.producer(), skip
        while source is not None and source.op_type in _EPILOGUE and len(consumers(value)) == 1:
            inner = source.inputs[0]
            if inner is None:
                break
            source, value = inner.producer(), inner
        if source in self.quantized and len(consumers(value)) == 1 and not value.is_graph_output():
            return None
        return (
            f"its skip input {skip.name} is wide elsewhere: to quantize it for this addition takes a kernel of its own"
        )

    def _fuses(self, value: ir.Value) -> bool:
        producer = value.producer()
        layer = describe(producer) if producer is not None and producer in self.quantized else None
        return (
            layer is not None
            and layer.node.op_type in {"Conv", "ConvTranspose"}
            and not layer.depthwise
            and len(value.uses()) == 1
            and not value.is_graph_output()
        )

    def _length(self, value: ir.Value) -> tuple[int, int]:
        producer = value.producer()
        assert producer is not None
        return self.depth[producer], self.order[producer]


def _depths(graph: ir.Graph) -> Mapping[ir.Node, int]:
    """How many nodes the longest path to each node has. Two paths from one node differ by their own lengths."""
    depth: dict[ir.Node, int] = {}
    for node in graph:
        producers = [v.producer() for v in node.inputs if v is not None]
        depth[node] = 1 + max((depth.get(p, 0) for p in producers if p is not None), default=0)
    return depth
