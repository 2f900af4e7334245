"""Keys and values that several heads of queries share: repeated for each of them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import attribute, bypass, constant, dims, made_by, nodes, only_user, replace
from aot.passes._views import Layout, Size


@graph_pass(
    anchors=("Expand",),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,2,S,3] k) => (float[B,6,S,3] y)
    <int64[1] two = {2}, int64[2] heads = {2, 3}, int64[1] size = {3}, int64[4] joined = {0, 6, -1, 3}>
    { u = Unsqueeze(k, two)  b = Shape<start = 0, end = 1>(k)  s = Shape<start = 2, end = 3>(k)
      t = Concat<axis = 0>(b, heads, s, size)  e = Expand(u, t)  y = Reshape(e, joined) }
    """,
)
def repeated_heads(model: ir.Model, skip: Skip) -> int:
    """Reshape(Expand(Unsqueeze(k))) that repeats every head n times in a row = Gather(k, [0, .., 0, 1, .., 1, ..]).

    A single head is not repeated at all where products of matrices read it, for they broadcast.
    """
    changed = 0
    for node in nodes(model, "Expand"):
        last = only_user(node.outputs[0])
        first = made_by(node.inputs[0], "Unsqueeze", "Reshape")
        if last is None or first is None or last.domain or last.op_type != "Reshape" or last.graph is not node.graph:
            continue
        k = first.inputs[0]
        shape, one, many = (dims(value) for value in (k, node.inputs[0], node.outputs[0]))
        layout = Layout.of(many)
        if k is None or shape is None or one is None or many is None or layout is None or not layout.apply(last):
            continue
        axis = next((at - 1 for at, dim in enumerate(many) if at and at < len(one) and dim != one[at]), 0)
        heads, times = many[axis : axis + 2]
        if not isinstance(heads, int) or not isinstance(times, int) or len(many) != len(shape) + 1:
            continue
        head, tail = shape[:axis], shape[axis + 1 :]
        if one != (*head, heads, 1, *tail) or many != (*head, heads, times, *tail):
            continue
        joined = [Size.of(dim) for dim in (*head, heads * times, *tail)]
        if [layout.size(dim) for dim in layout.after] != joined:
            continue
        if heads == 1 and _broadcast(last.outputs[0], axis, len(shape), times):
            _narrow(last.outputs[0], shape)
            bypass(last, k)
        else:
            index = constant(model, f"{last.outputs[0].name}_heads", np.repeat(np.arange(heads), times))
            replace(last, "Gather", [k, index], {"axis": axis})
        changed += 1
    return changed


def _broadcast(value: ir.Value, axis: int, rank: int, heads: int) -> bool:
    """Whether only products of matrices read it, transposed or not, in which the axis is none of the matrices'."""
    if value.is_graph_output() or axis >= rank - 2:
        return False
    for use in value.uses():
        node = use.node
        turned = tuple(attribute(node, "perm", ())) == (*range(rank - 2), rank - 1, rank - 2)
        if node.domain or not (
            node.op_type == "MatMul"
            or (node.op_type == "Transpose" and turned and _broadcast(node.outputs[0], axis, rank, heads))
        ):
            return False
        if node.op_type == "MatMul":
            other = dims(node.inputs[1 - use.idx])
            # The other operand has the heads, so that the product keeps its shape.
            if other is None or len(other) != rank or other[axis] != heads:
                return False
    return True


def _narrow(value: ir.Value, shape: tuple[int | str | None, ...]) -> None:
    """The shapes of what is transposed from it."""
    for use in value.uses():
        if use.node.op_type == "Transpose":
            use.node.outputs[0].shape = ir.Shape([*shape[:-2], shape[-1], shape[-2]])
