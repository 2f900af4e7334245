"""Which inputs and outputs of a node may take the compute dtype, by the operator's own schema."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import onnx
import onnx_ir as ir

from aot.plugins.schema import NODE_TYPES, ONNX_TYPES

_TYPE = {
    ir.DataType.FLOAT: "tensor(float)",
    ir.DataType.FLOAT16: "tensor(float16)",
    ir.DataType.BFLOAT16: "tensor(bfloat16)",
}
# Since opset 22 convolutions, poolings and activations take BF16. Their semantics at 20 and 21 are the same;
# only GroupNormalization changed on the way (its scale and bias are per channel since 21).
BF16_OPSET, _FROM, _CHANGED = 22, 20, frozenset({"GroupNormalization"})


@dataclass(frozen=True)
class Slots:
    """For every input and output: whether it is FLOAT today and may become the compute dtype."""

    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]

    def __bool__(self) -> bool:
        return any(self.inputs) or any(self.outputs)


@cache
def _allowed(domain: str, op: str, opset: int) -> tuple[tuple[frozenset[str], ...], tuple[frozenset[str], ...]] | None:
    try:
        schema = onnx.defs.get_schema(op, opset, domain)
    except onnx.defs.SchemaError:
        return None
    variables = {c.type_param_str: frozenset(c.allowed_type_strs) for c in schema.type_constraints}

    def types(parameters: list[onnx.defs.OpSchema.FormalParameter]) -> tuple[frozenset[str], ...]:
        return tuple(variables.get(p.type_str, frozenset({p.type_str})) for p in parameters)

    return types(list(schema.inputs)), types(list(schema.outputs))


def _stated(node: ir.Node) -> tuple[tuple[frozenset[str], ...], tuple[frozenset[str], ...]] | None:
    """The same as a plugin's node says it."""
    if NODE_TYPES not in node.metadata_props:
        return None
    types = tuple(
        frozenset(f"tensor({ONNX_TYPES[dtype]})" for dtype in one.split())
        for one in node.metadata_props[NODE_TYPES].split(";")
    )
    return types[: len(node.inputs)], types[len(node.inputs) :]


def slots(node: ir.Node, compute: ir.DataType, opset: int) -> Slots | None:
    """Ask the schema of the operator at that opset, or the node of a plugin; None for an operator without either.

    A variadic operator's last parameter stands for all that follow.
    """
    allowed = _allowed(node.domain, node.op_type, opset) or _stated(node)
    if allowed is None:
        return None
    wanted = _TYPE[compute]

    def may(values: tuple[ir.Value | None, ...], types: tuple[frozenset[str], ...]) -> tuple[bool, ...]:
        return tuple(
            value is not None and value.dtype == ir.DataType.FLOAT and wanted in types[min(i, len(types) - 1)]
            for i, value in enumerate(values)
        )

    return Slots(may(tuple(node.inputs), allowed[0]), may(tuple(node.outputs), allowed[1]))


def opset_for(model: ir.Model, compute: ir.DataType, least: int = 0) -> int:
    """The opset the graph should declare: `least`, or 22 where BF16 needs it, where nothing changes meaning; else its
    own."""
    opset = model.opset_imports.get("", 0)
    if not _FROM <= opset < BF16_OPSET:
        return opset
    nodes = [n for n in model.graph.all_nodes() if n.domain == ""]
    if any(n.op_type in _CHANGED for n in nodes):
        return opset
    opset = max(opset, least)
    if compute != ir.DataType.BFLOAT16:
        return opset
    gains = any(slots(n, compute, opset) != slots(n, compute, BF16_OPSET) for n in nodes)
    return BF16_OPSET if gains else opset
