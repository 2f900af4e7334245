"""Attention as one node, for a builder that has it: the last rewrite before the build (`aot.form`), not in `PASSES`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._attention import NARROW, Site, found, positions, square
from aot.passes._edit import Dim, attribute, constant, dims, made_by, nodes, replace, same

OPSET = 23
# Head sizes from 32 to 256 in steps of 4 build; 8 was seen to fail, and what lies between was not tried.
_HEADS = range(32, 257, 4)
# Between here and opset 23 the other ops only took more dtypes.
_CHANGED, _CHANGED_IN = frozenset({"GroupNormalization"}), 21


@graph_pass(
    anchors=("Softmax",),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float16[B,2,S,32] q, float16[B,2,32,S] k, float16[B,2,S,32] v, float16[B,1,1,S] m) => (float16[B,2,S,32] y)
    { a = MatMul(q, k)  b = Add(a, m)  p = Softmax(b)  y = MatMul(p, v) }
    """,
)
def attention_operator(model: ir.Model, skip: Skip) -> int:
    """softmax(Q Kt + M) V = Attention(Q, K, V, M) with scale 1, by the definition of opset 23.

    Where M lets a query look at the keys up to its own position, and there are as many of both, is_causal says so.
    """
    opset = model.opset_imports.get("", 0)
    if opset < OPSET - 3 or (opset < _CHANGED_IN and any(nodes(model, *_CHANGED))):
        return 0
    changed = 0
    for node in nodes(model, "MatMul"):
        site = found(node)
        if site is None:
            continue
        why = _unfit(site)
        if why is not None:
            skip(node, why)
            continue
        causal = site.mask is not None and square(site.mask)
        inputs = [site.query, _turned_back(site.turned, node), site.value]
        if site.mask is not None and not causal:
            inputs.append(_of_rank_4(model, site.mask, node))
        replace(node, "Attention", inputs, {"scale": 1.0, **({"is_causal": 1} if causal else {})})
        changed += 1
    if changed:
        model.opset_imports[""] = max(opset, OPSET)
    return changed


def _unfit(site: Site) -> str | None:
    """Why the operator cannot take these; None where it can."""
    query, turned, value, mask = site
    source, order = _keys(turned)
    used = [one for one in (query, turned if order else source, value, mask) if one is not None]
    if query.dtype not in NARROW or any(one.dtype != query.dtype for one in used):
        return "it is not in FP16 or BF16 throughout"
    if len(set(used)) < len(used):
        return "one tensor is used twice"  # in all three places it was seen to end the vendor's process
    q, k, v = dims(query), dims(turned), dims(value)
    if q is None or k is None or v is None or not len(q) == len(k) == len(v) == 4:
        return "its tensors are not all of rank 4"
    if q[3] not in _HEADS or k[2] != q[3] or v[3] != q[3]:
        return f"its heads have the sizes {q[3]}, {k[2]}, {v[3]}"
    if not all(same(q[axis], one[axis]) for axis in (0, 1) for one in (k, v)):
        return "its batch or heads are broadcast, or not known"
    return _unfit_mask(mask, (q[0], q[1], q[2], k[3])) if mask is not None else None


def _unfit_mask(mask: ir.Value, scores: Sequence[Dim]) -> str | None:
    shape = positions(mask) or dims(mask)
    if shape is None or len(shape) not in (2, 4):
        return "the mask has neither rank 2 nor rank 4"
    # The operator repeats a mask over batch, heads and queries, but fills up rows that are short of keys.
    wanted = scores[-len(shape) :]
    fits = all(one == 1 or same(one, full) for one, full in zip(shape, wanted, strict=True))
    return None if fits and same(shape[-1], wanted[-1]) else "the mask has another shape than the scores"


def _keys(turned: ir.Value) -> tuple[ir.Value, list[int]]:
    """Where the keys with the head size last come from: a value, and how it is to be transposed (empty: as it is)."""
    source, order = turned, [0, 1, 3, 2]
    transpose = made_by(turned, "Transpose")
    if transpose is not None and transpose.inputs[0] is not None:
        source = transpose.inputs[0]
        was = attribute(transpose, "perm", [3, 2, 1, 0])
        order = [was[axis] for axis in order]
    return source, [] if order == [0, 1, 2, 3] else order


def _turned_back(turned: ir.Value, before: ir.Node) -> ir.Value:
    source, order = _keys(turned)
    return _before(before, "Transpose", [source], {"perm": order}) if order else source


def _of_rank_4(model: ir.Model, mask: ir.Value, before: ir.Node) -> ir.Value:
    if len(mask.shape or ()) == 4:
        return mask
    return _before(before, "Unsqueeze", [mask, constant(model, f"{mask.name}_axes", np.array([0, 1]))])


def _before(node: ir.Node, op: str, inputs: list[ir.Value], attributes: dict[str, list[int]] | None = None) -> ir.Value:
    """The output of a new node in front of `node`, with its origin."""
    made = ir.node(op, inputs, attributes, name=f"{node.name}_{op}", metadata_props=dict(node.metadata_props))
    made.outputs[0].name = f"{node.outputs[0].name}_{op}"
    assert node.graph is not None
    node.graph.insert_before(node, made)
    return made.outputs[0]
