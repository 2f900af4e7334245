"""How many layers of a file are quantized, and how many stay wide."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import onnx

LAYERS = ("MatMul", "Gemm", "Conv", "ConvTranspose")
_MOVES = ("Cast", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity")


@dataclass(frozen=True)
class Layers:
    """quantized: layers whose two factors both come from a DequantizeLinear, over casts and moves. wide: the others.

    qdq: QuantizeLinear and DequantizeLinear nodes. nodes: all but Constant. The main graph alone counts.
    """

    quantized: int
    wide: int
    qdq: int
    nodes: int

    def to_json(self) -> dict[str, int]:
        """Plain data."""
        return asdict(self)


def layers_of(file: Path) -> Layers:
    """Count."""
    graph = onnx.load(file, load_external_data=False).graph
    made = {output: node for node in graph.node for output in node.output}

    def quantized(name: str) -> bool:
        node = made.get(name)
        while node is not None and node.op_type in _MOVES:
            node = made.get(node.input[0])
        return node is not None and node.op_type == "DequantizeLinear"

    layers = [node for node in graph.node if node.op_type in LAYERS]
    narrow = sum(all(map(quantized, node.input[:2])) for node in layers)
    qdq = sum(node.op_type in ("QuantizeLinear", "DequantizeLinear") for node in graph.node)
    nodes = sum(node.op_type != "Constant" for node in graph.node)
    return Layers(narrow, len(layers) - narrow, qdq, nodes)
