"""Sequences of tensors, which builders lack, where they only hand on the parts of a split."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import array, attribute, constant, dims, nodes, opset, scalar


@graph_pass(
    anchors=("SplitToSequence",),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,5] x) => (float[B,P] y) <int64 two = {2}, int64 first = {0}, int64 last = {-1}>
    { s = SplitToSequence<axis = 1>(x, two)  a = SequenceAt(s, first)  b = SequenceAt(s, last)
      y = Concat<axis = 1>(a, b) }
    """,
)
def sequence_parts(model: ir.Model, skip: Skip) -> int:
    """SequenceAt(SplitToSequence(x), i) = part i of Split(x), where all that reads the sequence is told a number."""
    changed = 0
    for node in nodes(model, "SplitToSequence"):
        shape, told = dims(node.inputs[0]), array(node.inputs[1]) if len(node.inputs) > 1 else None
        readers = [use.node for use in node.outputs[0].uses()]
        if shape is None or told is None or opset(model) < 13 or node.outputs[0].is_graph_output():
            continue
        axis = attribute(node, "axis", 0) % len(shape)
        size = shape[axis]
        if told.ndim == 0 and not isinstance(size, int):
            skip(node, "the size along its axis is not known")
            continue
        step, whole = int(told.reshape(-1)[0]), int(size) if isinstance(size, int) else 0
        sizes = told.tolist() if told.ndim else [min(step, whole - start) for start in range(0, whole, step)]
        picks = [scalar(reader.inputs[1]) if reader.op_type == "SequenceAt" else None for reader in readers]
        if not readers or any(
            pick is None or not -len(sizes) <= pick < len(sizes) or reader.graph is not node.graph
            for pick, reader in zip(picks, readers, strict=True)
        ):
            continue
        if any(reader.outputs[0].is_graph_output() for reader in readers):
            continue
        given = constant(model, f"{node.outputs[0].name}_sizes", np.array(sizes, np.int64))
        split = ir.node("Split", [node.inputs[0], given], {"axis": axis}, num_outputs=len(sizes), name=node.name)
        split.metadata_props.update(node.metadata_props)
        for index, (part, extent) in enumerate(zip(split.outputs, sizes, strict=True)):
            part.name, part.type = f"{node.outputs[0].name}_{index}", node.inputs[0].type  # type: ignore[union-attr]
            part.shape = ir.Shape([*shape[:axis], extent, *shape[axis + 1 :]])
        assert node.graph is not None
        node.graph.insert_before(node, split)
        for pick, reader in zip(picks, readers, strict=True):
            ir.convenience.replace_all_uses_with(reader.outputs[0], split.outputs[int(pick or 0)])
        changed += 1
    return changed
