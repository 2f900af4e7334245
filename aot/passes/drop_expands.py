"""Expansions that an elementwise op does by itself."""

from __future__ import annotations

import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import Dim, broadcast, dims, made_by, nodes, same

_BROADCASTING = (
    *("Add", "Sub", "Mul", "Div", "Mod", "Pow", "And", "Or", "Xor", "Where", "Min", "Max", "Sum"),
    *("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor"),
)


@graph_pass(
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,4] x, float[B,1] z) => (float[B,4] y) { s = Shape(x)  e = Expand(z, s)  y = Div(x, e) }
    """,
    anchors=("Expand",),
)
def drop_expands(model: ir.Model, skip: Skip) -> int:
    """An elementwise op broadcasts by itself: f(x, Expand(z, shape)) = f(x, z) where x has that shape anyway."""
    changed = 0
    for expand in nodes(model, "Expand"):
        for use in expand.outputs[0].uses():
            node, z = use.node, expand.inputs[0]
            if z is None or node.domain or node.op_type not in _BROADCASTING:
                continue
            if made_by(node.inputs[use.idx], "Expand") is not expand:
                continue
            if _same_result(node, use.idx, z):
                node.replace_input_with(use.idx, z)
                changed += 1
            else:
                skip(node, f"its result is not known to keep its shape without the expansion of '{z.name}'")
    return changed


def _same_result(node: ir.Node, index: int, z: ir.Value) -> bool:
    wanted = dims(node.outputs[0])
    shape: tuple[Dim, ...] | None = ()
    for at, value in enumerate(node.inputs):
        other = dims(z if at == index else value)
        shape = None if other is None or shape is None else broadcast(shape, other)
    return wanted is not None and shape is not None and len(shape) == len(wanted) and all(map(same, shape, wanted))
