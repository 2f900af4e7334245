"""GELU written out: exactly, with the error function, or nearly, with tanh."""

from __future__ import annotations

import math

import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import nodes, only_user, opset, replace
from aot.passes._formulas import Polynomial, argument, close, polynomial, product_of

_ROOT = math.sqrt(2 / math.pi)


@graph_pass(
    anchors=("Erf",),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,4] x) => (float[B,4] y) <float root = {1.4142135}, float one = {1}, float half = {0.5}>
    { a = Div(x, root)  b = Erf(a)  c = Add(b, one)  d = Mul(x, c)  y = Mul(d, half) }
    """,
)
def erf_gelu(model: ir.Model, skip: Skip) -> int:
    """x · (1 + erf(x / sqrt(2))) / 2 = Gelu(x), in whatever order the factors are multiplied."""
    return _rewrite(model, skip, "Erf", {1: math.sqrt(0.5)}, "none")


@graph_pass(
    anchors=("Tanh",),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,4] x) => (float[B,4] y)
    <float three = {3}, float c = {0.044715}, float root = {0.7978845608}, float one = {1}, float half = {0.5}>
    { a = Pow(x, three)  b = Mul(a, c)  d = Add(x, b)  e = Mul(d, root)  t = Tanh(e)  u = Add(t, one)  v = Mul(x, half)
      y = Mul(v, u) }
    """,
)
def tanh_gelu(model: ir.Model, skip: Skip) -> int:
    """x · (1 + tanh(sqrt(2/pi) · (x + 0.044715 x³))) / 2 = Gelu(x) with approximate = tanh, in whatever order."""
    return _rewrite(model, skip, "Tanh", {1: _ROOT, 3: 0.044715 * _ROOT}, "tanh")


def _rewrite(model: ir.Model, skip: Skip, op: str, inner: Polynomial, approximate: str) -> int:
    changed = 0
    for node in nodes(model, op) if opset(model) >= 20 else ():
        x = argument(node.inputs[0], inner)
        top = _product(node.outputs[0], x) if x is not None else None
        if x is not None and top is not None:
            replace(top, "Gelu", [x], {"approximate": approximate})
            changed += 1
        elif x is not None or op == "Erf":
            skip(node, f"not part of x · (1 + {op.lower()}(...)) / 2")
    return changed


def _product(curve: ir.Value, x: ir.Value) -> ir.Node | None:
    """The node that computes x · (1 + curve) / 2."""
    gate = curve
    for _ in range(2):  # the 1 is added, before or after the half is multiplied
        user = only_user(gate)
        if user is None or user.domain or user.op_type not in ("Add", "Mul"):
            return None
        gate = user.outputs[0]
        terms = polynomial(gate, curve)
        if terms is not None and terms.keys() == {0, 1} and close(terms[1], terms[0], x.dtype):
            return product_of(gate, x, 0.5 / terms[0])
    return None
