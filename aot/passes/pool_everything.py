"""Average pooling with a window that holds the whole input."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import attribute, constant, dims, nodes, opset, replace


@graph_pass(
    anchors=("AveragePool",),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,3,4,5] x) => (float[B,3,1,1] y)
    { y = AveragePool<kernel_shape = [4, 5], strides = [4, 5]>(x) }
    """,
)
def pool_everything(model: ir.Model, skip: Skip) -> int:
    """AveragePool(x) = ReduceMean(x) over the spatial axes, where the one window begins at the first element, reaches
    the last, and what lies beyond is not counted.

    TensorRT limits the size of a window, and models pool with windows larger than any input.
    """
    changed = 0
    for node in nodes(model, "AveragePool") if opset(model) >= 18 else ():
        before, after = dims(node.inputs[0]), dims(node.outputs[0])
        if before is None or after is None or any(size != 1 for size in after[2:]):
            continue
        kernel = list(attribute(node, "kernel_shape"))
        held = [isinstance(size, int) and size <= window for size, window in zip(before[2:], kernel, strict=True)]
        padded = any(attribute(node, "pads", ())) or attribute(node, "auto_pad", "NOTSET") != "NOTSET"
        if not all(held) or padded or any(step != 1 for step in attribute(node, "dilations", ())):
            skip(node, "the window is not known to hold the whole input without padding")
            continue
        axes = constant(model, f"{node.outputs[0].name}_axes", np.arange(2, len(before), dtype=np.int64))
        replace(node, "ReduceMean", [node.inputs[0], axes], {"keepdims": 1})
        changed += 1
    return changed
