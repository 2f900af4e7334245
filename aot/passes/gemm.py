"""Products of a matrix with a weight: bias and transposes are Gemm's own."""

from __future__ import annotations

import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import Dim, attribute, dims, made_by, nodes, only_user, opset, replace, same

_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)


@graph_pass(
    anchors=("MatMul", "Gemm"),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,3] x) => (float[B,2] y) <float[2,3] w = {1, 2, 3, 4, 5, 6}, float[2] c = {1, -1}>
    { t = Transpose(w)  a = MatMul(x, t)  y = Add(c, a) }
    """,
)
def gemm(model: ir.Model, skip: Skip) -> int:
    """For matrices: A B + C = Gemm(A, B, C), and A Bᵀ + C = Gemm(A, B, C; transB), Aᵀ B + C = Gemm(A, B, C; transA).

    B is a weight: a product of two activations is an attention's, and is looked for as MatMul. C may be any value that
    broadcasts to the product.
    """
    changed = 0
    for node in nodes(model, "MatMul") if opset(model) >= 11 else ():
        changed += _with_bias(node) or _weight_turned(node)
    for node in nodes(model, "Gemm"):
        changed += _turned(node)
    return changed


def _is_weight(value: ir.Value | None) -> bool:
    transpose = made_by(value, "Transpose")
    source = transpose.inputs[0] if transpose is not None else value
    return source is not None and not source.is_graph_input() and ir.convenience.get_const_tensor(source) is not None


def _matrices(node: ir.Node) -> tuple[Dim, Dim] | None:
    """The shape of the product, where it is one of a matrix with a weight."""
    left, right, out = (dims(value) for value in (*node.inputs[:2], node.outputs[0]))
    if left is None or right is None or out is None or not len(left) == len(right) == len(out) == 2:
        return None
    return (out[0], out[1]) if node.outputs[0].dtype in _TYPES and _is_weight(node.inputs[1]) else None


def _with_bias(node: ir.Node) -> int:
    add, shape = only_user(node.outputs[0]), _matrices(node)
    if shape is None or add is None or add.domain or add.op_type != "Add" or add.graph is not node.graph:
        return 0
    bias = add.inputs[1 if add.inputs[0] is node.outputs[0] else 0]
    known = dims(bias)
    if bias is None or known is None or len(known) > 2 or bias.dtype != node.outputs[0].dtype:
        return 0
    fits = all(one == 1 or same(one, full) for one, full in zip(known, shape[2 - len(known) :], strict=True))
    if not fits or bias is node.outputs[0]:
        return 0
    replace(add, "Gemm", [*node.inputs, bias], like=node)
    return 1


def _transpose(value: ir.Value | None) -> ir.Node | None:
    """The node that turns a matrix into `value`."""
    node = made_by(value, "Transpose")
    return node if node is not None and list(attribute(node, "perm", (1, 0))) == [1, 0] else None


def _weight_turned(node: ir.Node) -> int:
    """A Bᵀ without a bias, where Bᵀ is computed."""
    transpose = _transpose(node.inputs[1])
    if transpose is None or _matrices(node) is None:
        return 0
    replace(node, "Gemm", [node.inputs[0], transpose.inputs[0]], {"transB": 1})
    return 1


def _turned(node: ir.Node) -> int:
    """Take over the transposes of A and B."""
    inputs = list(node.inputs)
    attributes = {name: found.value for name, found in node.attributes.items()}
    for index, name in enumerate(("transA", "transB")):
        transpose = _transpose(inputs[index])
        if transpose is not None and (index == 1 or only_user(transpose.outputs[0]) is node):
            inputs[index] = transpose.inputs[0]
            attributes[name] = 1 - attributes.get(name, 0)
    if inputs == list(node.inputs):
        return 0
    replace(node, "Gemm", inputs, attributes)
    return 1
