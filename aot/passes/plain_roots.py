"""Powers, roots and reciprocals in the form with the fewest nodes."""

from __future__ import annotations

import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import array, attribute, bypass, dims, made_by, nodes, only_user, opset, replace, scalar
from aot.passes._formulas import is_float, product_of


@graph_pass(
    anchors=("Pow", "Div", "Reciprocal", "ReduceSum", "ReduceSumSquare"),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,4] x) => (float[B,4] y)
    <float two = {2}, float half = {-0.5}, float small = {0.001}, int64[1] last = {-1}>
    { s = Pow(x, two)  m = ReduceMean(s, last)  e = Add(m, small)  r = Pow(e, half)  y = Mul(r, x) }
    """,
)
def plain_roots(model: ir.Model, skip: Skip) -> int:
    """x^2 = x·x, x^0.5 = sqrt(x), x^-1 = 1/x; a·(1/b) = a/b and a·b^-0.5 = a/sqrt(b); sqrt(sum(x·x)) = ReduceL2(x);
    sum(x)/n = mean(x) for n numbers.

    So an RMS norm comes in one form, x / sqrt(mean(x·x) + epsilon) · w, which is the one with the fewest nodes, and
    whose square, mean and root `precision.chains` finds and keeps in FP32.
    """
    changed = 0
    for node in nodes(model, "Pow"):
        changed += _power(model, node)
    for node in nodes(model, "Div"):
        if is_float(node.outputs[0]) and scalar(node.inputs[0]) == 1 and _keeps_shape(node, 0):
            replace(node, "Reciprocal", [node.inputs[1]])
            changed += 1
    for node in nodes(model, "Reciprocal"):
        changed += _quotient(node)
    for node in nodes(model, "Sqrt"):
        changed += _length(model, node)
    for node in nodes(model, "ReduceSum"):
        changed += _mean(model, node)
    return changed


def _keeps_shape(node: ir.Node, index: int) -> bool:
    """Whether the one-element input `index` leaves the other's shape as it is."""
    constant, other = dims(node.inputs[index]), dims(node.inputs[1 - index])
    return constant is not None and (not constant or (other is not None and len(constant) <= len(other)))


def _power(model: ir.Model, node: ir.Node) -> int:
    exponent = scalar(node.inputs[1])
    if exponent is None or not _keeps_shape(node, 1):
        return 0
    base = node.inputs[0]
    assert base is not None
    if exponent == 2:
        replace(node, "Mul", [base, base])
    elif exponent == 1:
        bypass(node, base)
    elif exponent == 0.5 and is_float(node.outputs[0]):
        replace(node, "Sqrt", [base])
    elif exponent == -1 and is_float(node.outputs[0]):
        replace(node, "Reciprocal", [base])
    elif exponent == -0.5 and is_float(node.outputs[0]):
        product = only_user(node.outputs[0])
        if product is None or product.domain or product.op_type != "Mul" or product.graph is not node.graph:
            return 0
        other = product.inputs[1 if product.inputs[0] is node.outputs[0] else 0]
        root = replace(node, "Sqrt", [base])
        replace(product, "Div", [other, root.outputs[0]])
    else:
        return 0
    return 1


def _quotient(node: ir.Node) -> int:
    """a·(1/b) = a/b, where nothing else reads 1/b."""
    product = only_user(node.outputs[0])
    if product is None or product.domain or product.op_type != "Mul" or product.graph is not node.graph:
        return 0
    other = product.inputs[1 if product.inputs[0] is node.outputs[0] else 0]
    replace(product, "Div", [other, node.inputs[0]])
    return 1


def _length(model: ir.Model, node: ir.Node) -> int:
    """sqrt(sum(x·x)) = ReduceL2(x), whose axes are an input since opset 18."""
    if opset(model) < 18:
        return 0
    total = made_by(node.inputs[0], "ReduceSum", "ReduceSumSquare")
    if (
        total is None
        or total.graph is not node.graph
        or only_user(total.outputs[0]) is not node
        or not is_float(node.outputs[0])
    ):
        return 0
    x = total.inputs[0]
    if total.op_type == "ReduceSum":
        square = made_by(x, "Mul")
        if square is None or square.inputs[0] is not square.inputs[1]:
            return 0
        x = square.inputs[0]
    names = ("keepdims", "noop_with_empty_axes")
    kept = {name: attribute(total, name) for name in names if name in total.attributes}
    replace(node, "ReduceL2", [x, *total.inputs[1:]], kept)
    return 1


def _mean(model: ir.Model, node: ir.Node) -> int:
    """sum(x)/n = mean(x), for n numbers."""
    shape, axes = dims(node.inputs[0]), array(node.inputs[1]) if len(node.inputs) > 1 else None
    if shape is None or axes is None or not axes.size or not is_float(node.outputs[0]) or opset(model) < 18:
        return 0
    count = 1
    for axis in axes:
        size = shape[int(axis)]
        if not isinstance(size, int) or not size:
            return 0
        count *= size
    top = product_of(node.outputs[0], None, 1 / count)
    if top is None:
        return 0
    replace(top, "ReduceMean", node.inputs, {"keepdims": attribute(node, "keepdims", 1)})
    return 1
