"""What an engine is made of: its layers, the dtype each works in, and what became of every Q/DQ of the graph.

The text is that of TensorRT's engine inspector at detailed verbosity (JSON), which gives a layer's tensors with
"Format/Datatype", its tactic, and in "Metadata" the ONNX nodes that it computes: `[ONNX Layer: name]` each.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NARROW = ("fp8", "int8")
# In this order: a kernel that reads FP8 or INT8 is one of that precision, whatever else it reads.
_ORDER = (*NARROW, "bf16", "fp16", "fp32", "other")
_DTYPES = (
    ("fp8", r"fp8|float8|e4m3|e5m2"),
    ("int8", r"u?int8"),
    ("bf16", r"bf16|bfloat"),
    ("fp16", r"fp16|half|float16"),
    ("other", r"int\d+|bool|n/a"),
    ("fp32", r"fp32|float"),
)
# What a kernel's name says of its operands: `e4m3`, `i8i8`, `s8`.
_TACTICS = (("fp8", r"e4m3|fp8"), ("int8", r"(?<![a-z0-9])(?:i8|s8|int8)"))
_NODE = re.compile(r"\[ONNX Layer: ([^\]]*)\]")
# Kernels that Myelin generates are named after their ops; these only move or retype data.
_MOVING = re.compile(r"__myl_(?:Move|Tran|Rep|Cast|Copy)+_")
MATRIX = ("MatMul", "Gemm", "Conv", "ConvTranspose")
QDQ = ("QuantizeLinear", "DequantizeLinear")


@dataclass(frozen=True)
class Layer:
    """One layer of an engine. inputs, outputs: the dtypes of its tensors. nodes: the ONNX nodes that it computes."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tactic: str
    nodes: tuple[str, ...]

    @property
    def precision(self) -> str:
        """What it works in: what its kernel's name says, else the narrowest dtype that it reads."""
        for name, pattern in _TACTICS:
            if re.search(pattern, self.tactic.lower()):
                return name
        return min(self.inputs or self.outputs or ("other",), key=_ORDER.index)

    @property
    def reformats(self) -> bool:
        """Whether it only brings data into another layout or dtype."""
        return (
            self.kind.lower() in ("reformat", "move")
            or self.name.startswith("Reformatting CopyNode")
            or bool(_MOVING.match(self.name))
        )


def read(information: str) -> list[Layer]:
    """The layers in the inspector's order. Raises ValueError for anything but its detailed JSON."""
    found = json.loads(information).get("Layers", [])
    if any(not isinstance(layer, Mapping) for layer in found):
        raise ValueError("the engine was not built with detailed profiling verbosity")
    return [_layer(layer) for layer in found]


def _layer(layer: Mapping[str, Any]) -> Layer:
    return Layer(
        name=str(layer.get("Name", "")),
        kind=str(layer.get("LayerType", "")),
        inputs=tuple(dtype(tensor) for tensor in layer.get("Inputs", [])),
        outputs=tuple(dtype(tensor) for tensor in layer.get("Outputs", [])),
        tactic=str(layer.get("TacticName", "")),
        nodes=tuple(dict.fromkeys(_NODE.findall(str(layer.get("Metadata", ""))))),
    )


def dtype(tensor: Mapping[str, Any]) -> str:
    """`fp8`, `int8`, `fp16`, `bf16`, `fp32` or `other`, of a tensor as the inspector describes it."""
    said = str(tensor.get("Datatype", tensor.get("Format/Datatype", ""))).lower()
    return next((name for name, pattern in _DTYPES if re.search(pattern, said)), "other")


@dataclass(frozen=True)
class Graph:
    """What a final graph asks for. ops: node name -> op type. quantized: names of the nodes that read a
    DequantizeLinear on every operand: what the engine should compute in INT8 or FP8."""

    ops: Mapping[str, str]
    quantized: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> Graph:
        """From an ONNX file; its weights are not read."""
        import onnx

        graph = onnx.load(path, load_external_data=False).graph
        made = {name: node.op_type for node in graph.node for name in node.output}
        quantized = [
            node.name
            for node in graph.node
            if node.op_type in MATRIX and all(made.get(name) == "DequantizeLinear" for name in node.input[:2])
        ]
        return cls({node.name: node.op_type for node in graph.node}, tuple(quantized))


def summary(layers: Sequence[Layer], graph: Graph) -> dict[str, Any]:
    """Plain data: layers (count), precisions and matrix_precisions (precision -> layers; matrix: those that compute
    a MatMul, Gemm or Conv), quantized (nodes that the graph quantizes), wide (those of them that no INT8 or FP8
    layer computes), qdq_layers (layers that do nothing but quantize or dequantize), reformats (names)."""
    matrix = [layer for layer in layers if _ops(layer, graph) & set(MATRIX)]
    narrow = {node for layer in matrix if layer.precision in NARROW for node in layer.nodes}
    return {
        "layers": len(layers),
        "precisions": _counted(layer.precision for layer in layers),
        "matrix_precisions": _counted(layer.precision for layer in matrix),
        "quantized": len(graph.quantized),
        "wide": [node for node in graph.quantized if node not in narrow],
        "qdq_layers": [layer.name for layer in layers if (ops := _ops(layer, graph)) and ops <= set(QDQ)],
        "reformats": [layer.name for layer in layers if layer.reformats],
    }


def _ops(layer: Layer, graph: Graph) -> set[str]:
    return {graph.ops[node] for node in layer.nodes if node in graph.ops}


def _counted(precisions: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(precisions).items(), key=lambda item: _ORDER.index(item[0])))
