"""Conversions that undo or repeat each other."""

from __future__ import annotations

import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import bypass, made_by, nodes, replace

_T = ir.DataType
_WHOLE = (_T.INT64, _T.DOUBLE)
_HOLDS: dict[ir.DataType, frozenset[ir.DataType]] = {
    _T.BOOL: frozenset((_T.INT8, _T.UINT8, _T.INT16, _T.INT32, _T.INT64, _T.FLOAT16, _T.BFLOAT16, _T.FLOAT, _T.DOUBLE)),
    _T.INT8: frozenset((_T.INT16, _T.INT32, _T.INT64, _T.FLOAT16, _T.BFLOAT16, _T.FLOAT, _T.DOUBLE)),
    _T.UINT8: frozenset((_T.INT16, _T.INT32, _T.INT64, _T.FLOAT16, _T.BFLOAT16, _T.FLOAT, _T.DOUBLE)),
    _T.INT16: frozenset((_T.INT32, _T.INT64, _T.FLOAT, _T.DOUBLE)),
    _T.INT32: frozenset((_T.INT64, _T.DOUBLE)),
    _T.FLOAT16: frozenset((_T.FLOAT, _T.DOUBLE)),
    _T.BFLOAT16: frozenset((_T.FLOAT, _T.DOUBLE)),
    _T.FLOAT: frozenset((_T.DOUBLE,)),
}
"""Type -> those that hold each of its numbers exactly."""


@graph_pass(
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (bool[B,4] x, float[B,4] z) => (float[B,4] y)
    { n = Not(x)  m = Not(n)  i = Cast<to = 7>(m)  f = Cast<to = 1>(i)  y = Add(f, z) }
    """,
    anchors=("Cast", "Not", "Neg"),
)
def merge_casts(model: ir.Model, skip: Skip) -> int:
    """A cast to a type that holds every number of the one before, and then to another, is the second cast alone; what
    is negated twice, as a number or as a truth, is what it was.
    """
    changed = 0
    for second in nodes(model, "Cast", "Not", "Neg"):
        first = made_by(second.inputs[0], second.op_type)
        x = first.inputs[0] if first is not None else None
        if first is None or x is None:
            continue
        if second.op_type != "Cast":
            bypass(second, x)
        elif x.dtype is not None and first.outputs[0].dtype in _HOLDS.get(x.dtype, ()):
            replace(second, "Cast", [x], second.attributes)
        else:
            continue
        changed += 1
    return changed
