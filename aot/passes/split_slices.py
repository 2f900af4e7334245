"""Slices that take a tensor apart."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import array, constant, dims, nodes, opset


def _range(node: ir.Node) -> tuple[int, int, int] | None:
    """(axis, start, end), counted from the front, of a Slice along one axis in steps of 1; None for any other."""
    shape, given = dims(node.inputs[0]), [array(told) for told in node.inputs[1:]]
    if shape is None or len(given) < 3 or any(told is None or told.size != 1 for told in given):
        return None
    start, end, axis, *step = (int(told.reshape(())) for told in given if told is not None)
    axis %= len(shape)
    size = shape[axis]
    if not isinstance(size, int) or step not in ([], [1]):
        return None
    start, end = (max(0, at + size) if at < 0 else min(at, size) for at in (start, end))
    return (axis, start, end) if start < end else None


@graph_pass(
    anchors=("Slice",),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,7] x) => (float[B,7] y) <int64[1] o = {0}, int64[1] c = {3}, int64[1] e = {99}, int64[1] axis = {1}>
    { a = Slice(x, c, e, axis)  b = Slice(x, o, c, axis)  y = Concat<axis = 1>(a, b) }
    """,
)
def split_slices(model: ir.Model, skip: Skip) -> int:
    """Slices of one tensor along one axis, each beginning where another ends, from the first element to the last, are
    the parts of one Split.
    """
    found: dict[tuple[ir.Value, int, ir.Graph | ir.Function | None], dict[int, tuple[int, ir.Node]]] = {}
    for node in nodes(model, "Slice") if opset(model) >= 13 else ():
        whole, extent = node.inputs[0], _range(node)
        if whole is None or extent is None or len(whole.uses()) < 2 or node.outputs[0].is_graph_output():
            continue
        axis, start, end = extent
        found.setdefault((whole, axis, node.graph), {}).setdefault(start, (end, node))
    changed = 0
    for (whole, axis, graph), parts in found.items():
        size, at, used = (dims(whole) or ())[axis], 0, list[ir.Node]()
        sizes: list[int] = []
        while at in parts:
            end, node = parts[at]
            used.append(node)
            sizes.append(end - at)
            at = end
        if at != size or len(used) < 2 or graph is None:
            continue
        first = next(node for node in graph if node in used)
        told = constant(model, f"{used[0].outputs[0].name}_sizes", np.array(sizes, np.int64))
        split = ir.node("Split", [whole, told], {"axis": axis}, num_outputs=len(used), name=f"{first.name}_Split")
        split.metadata_props.update(first.metadata_props)
        for node, part in zip(used, split.outputs, strict=True):
            part.name, part.type, part.shape = f"{node.outputs[0].name}_part", whole.type, node.outputs[0].shape
        graph.insert_before(first, split)
        ir.convenience.replace_all_uses_with([node.outputs[0] for node in used], split.outputs)
        changed += 1
    return changed
