"""Final graphs with nodes of the plugin `mine::triple` (projects.TRIPLE), as surgery and quantization leave them."""

from __future__ import annotations

from pathlib import Path

import onnx

from aot.plugins.schema import NODE_TYPES
from aot.records import QuantizedGraph
from aot.store import Entry
from tests.backends.graphs import write

FUNCTION = """
<opset_import: ["" : 20], domain: "mine">
triple <shift> (x) => (y) { three = Constant <value_float = 3.0> ()  wide = CastLike(three, x)  y = Mul(x, wide) }
"""
TWO = "g (float[b, 8] x) => (float[b, 8] z) { y = mine.triple <shift = 1.0> (x)  z = mine.triple <shift = 1.0> (y) }"


def final(folder: Path, text: str = TWO, key: str = "k" * 64) -> QuantizedGraph:
    """The graph as the record of a finished stage; its nodes are named `n0`, `n1`, ..., each at a line of model.py."""
    (folder / key).mkdir(exist_ok=True)
    path = write(folder / key / "model.onnx", text + FUNCTION)
    model = onnx.load(path)
    model.opset_import.append(onnx.helper.make_opsetid("mine", 1))
    model = onnx.shape_inference.infer_shapes(model)
    for line, node in enumerate(model.graph.node, 1):
        if node.domain == "mine":
            node.metadata_props.add(key=NODE_TYPES, value="float32 float16;float32 float16")
            node.metadata_props.add(key="aot.source", value=f"model.py:{line}")
    onnx.save(model, path)
    return QuantizedGraph(Entry("quantize", key, folder / key, {"nodes": len(model.graph.node)}))
