"""A product of matrices between two reshapes, as older exporters and GPT-2's Conv1D write a linear layer over more than
two dims."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import attribute, constant, dims, made_by, nodes, only_user, replace
from aot.passes._views import Size, View, insert, told


def _turned(model: ir.Model, weight: ir.Value) -> ir.Value:
    """The weight transposed; it is read when the graph is written."""
    tensor = weight.const_value
    assert tensor is not None
    rows, columns = (int(size) for size in tensor.shape.numpy())

    def turn() -> ir.TensorProtocol:
        return ir.tensor(np.ascontiguousarray(tensor.numpy().T), dtype=tensor.dtype)

    value = constant(model, f"{weight.name}_turned", np.zeros(0, tensor.dtype.numpy()))
    value.shape = ir.Shape((columns, rows))
    value.const_value = ir.LazyTensor(turn, dtype=tensor.dtype, shape=ir.Shape((columns, rows)), name=value.name)
    return value


@graph_pass(
    anchors=("Gemm", "MatMul"),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,S,2] x) => (float[B,S,3] y)
    <int64[2] flat = {-1, 2}, float[3,2] w = {1, 2, 3, 4, 5, 6}, float[3] b = {1, 2, 3}, int64[1] three = {3}>
    { r = Reshape(x, flat)  g = Gemm<transB = 1>(r, w, b)  s = Shape<start = 0, end = 2>(x)
      t = Concat<axis = 0>(s, three)  y = Reshape(g, t) }
    """,
)
def flat_gemm(model: ir.Model, skip: Skip) -> int:
    """Reshape(Gemm(Reshape(x, [-1, K]), W, b), [..., N]) = x·W + b, with x in the shape [..., K]; so with a MatMul of
    matrices, which has no b.

    Where x has that shape the first Reshape goes, too; else it can join the views in front of it.
    """
    changed = 0
    for node in nodes(model, "Gemm", "MatMul"):
        flat = made_by(node.inputs[0], "Reshape")
        last = only_user(node.outputs[0])
        if flat is None or last is None or last.domain or last.op_type != "Reshape" or last.graph is not node.graph:
            continue
        x, weight = flat.inputs[0], node.inputs[1]
        before, after = dims(x), dims(last.outputs[0])
        sizes = None if after is None else [Size.of(dim) for dim in after]
        if x is None or before is None or sizes is None or None in sizes or not _linear(node, after):
            continue
        assert weight is not None
        turn = attribute(node, "transB", 0)
        if turn and (only_user(weight) is not node or weight.is_graph_output()):
            skip(node, "its transposed weight is read by another node, too")
            continue
        width = int(weight.shape[1 if turn else 0])  # type: ignore[index, arg-type]
        wanted = [size for size in sizes[:-1] if size is not None] + [Size(width)]
        if [Size.of(dim) for dim in before] != wanted:
            source = [Size.of(dim) for dim in before]
            view = told([s for s in source if s is not None], wanted) if None not in source else None
            if view is None:
                skip(node, "the shape of its input is not known well enough to keep it")
                continue
            x = insert(model, [View(*view, wanted)], x, node, f"{node.outputs[0].name}_wide")
        _write(model, node, last, x, _turned(model, weight) if turn else weight)
        changed += 1
    return changed


def _linear(node: ir.Node, after: tuple[object, ...] | None) -> bool:
    """Whether it is x·W + b of constants, with one b a column, and the Reshape behind it leaves the columns alone."""
    weight, bias = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    if attribute(node, "transA", 0) or attribute(node, "alpha", 1.0) != 1 or attribute(node, "beta", 1.0) != 1:
        return False
    if weight is None or weight.const_value is None or weight.is_graph_input() or weight.dtype is None:
        return False
    if not weight.dtype.is_floating_point() or weight.dtype.bitwidth < 16:
        return False
    if any(len(dims(value) or ()) != 2 for value in node.inputs[:2]):
        return False
    columns = weight.const_value.shape[0 if attribute(node, "transB", 0) else 1]
    return (bias is None or dims(bias) == (columns,)) and after is not None and after[-1] == columns


def _write(model: ir.Model, node: ir.Node, last: ir.Node, x: ir.Value, weight: ir.Value) -> None:
    """Put the MatMul, and the Add of the bias, in the place of the Gemm and the Reshape behind it."""
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is None:
        replace(last, "MatMul", [x, weight], like=node)
        return
    assert node.graph is not None
    name = f"{node.outputs[0].name}_product"
    product = ir.node("MatMul", [x, weight], name=f"{node.name}_product", metadata_props=dict(node.metadata_props))
    result = product.outputs[0]
    result.name, result.type, result.shape = name, last.outputs[0].type, last.outputs[0].shape
    node.graph.insert_before(node, product)
    replace(last, "Add", [result, bias], like=node)
