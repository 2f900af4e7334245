"""`If` of which only one branch leaves what its readers take."""

from __future__ import annotations

import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import array, attribute, dims, made_by, nodes
from aot.passes.known_branches import inline

_DEPTH = 8
"""Nodes that are followed from an If to what has a rank of its own, and back into its branches."""
_KEEPING = frozenset(
    ("Identity", "Relu", "Sigmoid", "Tanh", "Exp", "Log", "Neg", "Abs", "Sqrt", "Cast", "Clip", "LeakyRelu", "Softmax")
)
_RECURRENT = frozenset(("LSTM", "GRU", "RNN"))


@graph_pass(
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,3,1] x) => (float[B,2,1] y)
    <int64[1] last = {-1}, int64[1] at = {2}, int64[1] one = {1}, float[2,3,1] w = {1, 2, 3, 4, 5, 6}>
    { s = Shape<start = 2>(x)  r = Squeeze(s)  c = Equal(r, one)
      z = If (c) <then_branch = t () => (float[B,3] p) { p = Squeeze(x, at) },
                  else_branch = e () => (float[B,3,1] q) { q = Identity(x) }>
      u = Unsqueeze(z, last)  v = Relu(u)  y = Conv(v, w) }
    """,
    anchors=("If",),
)
def possible_branches(model: ir.Model, skip: Skip) -> int:
    """An If of whose branches one leaves a rank that no node takes which reads it is the other branch.

    A convolution takes the rank of its weight, a recurrent layer 3 for its sequence and its states. Where the condition
    asks for the branch that is dropped, the model would have failed; it still does, if the other branch cannot be
    computed, or computes what it would for the shapes that fit. This is how torch.onnx.export writes a squeeze of a
    dim of unknown size in front of a layer.
    """
    changed = 0
    for node in nodes(model, "If"):
        branches = [attribute(node, name) for name in ("then_branch", "else_branch")]
        for at, output in enumerate(node.outputs):
            wanted = _wanted(output, _DEPTH)
            ranks = [_ranks(branch.outputs[at], _DEPTH) for branch in branches]
            if wanted is None or None in ranks:
                continue
            fitting = [branch for branch, rank in zip(branches, ranks, strict=True) if wanted in (rank or ())]
            if len(fitting) == 1:
                inline(model, node, fitting[0])
                changed += 1
                break
    return changed


def _wanted(value: ir.Value, depth: int) -> int | None:
    """The rank that a reader of `value` in the same graph demands, None where none does."""
    for use in value.uses() if depth else ():
        node = use.node
        if node.domain or (value.producer() is not None and node.graph is not value.graph):
            continue
        if node.op_type == "Conv" and use.idx == 0:
            weight = dims(node.inputs[1])
            found = None if weight is None else len(weight)
        elif node.op_type in _RECURRENT and use.idx in (0, 5, 6):
            found = 3
        elif node.op_type in _KEEPING:
            found = _wanted(node.outputs[0], depth - 1)
        elif node.op_type in ("Unsqueeze", "Squeeze") and use.idx == 0 and (more := _added(node)) is not None:
            after = _wanted(node.outputs[0], depth - 1)
            found = None if after is None else after - more
        else:
            found = None
        if found is not None:
            return found
    return None


def _ranks(value: ir.Value, depth: int) -> frozenset[int] | None:
    """The ranks that `value` may have, None where they are not known.

    What a branch says of the shape of an outer If is not asked: it holds where the branch is taken, and only there.
    """
    outer = made_by(value, "If")
    if outer is not None and depth:
        parts = [
            _ranks(attribute(outer, name).outputs[value.index() or 0], depth - 1)
            for name in ("then_branch", "else_branch")
        ]
        return None if parts[0] is None or parts[1] is None else parts[0] | parts[1]
    node = made_by(value, *_KEEPING, "Unsqueeze", "Squeeze")
    if node is not None and node.inputs[0] is not None and depth:
        inner = _ranks(node.inputs[0], depth - 1)
        more = 0 if node.op_type in _KEEPING else _added(node)
        return None if inner is None or more is None else frozenset(rank + more for rank in inner)
    shape = dims(value)
    return None if shape is None else frozenset((len(shape),))


def _added(node: ir.Node) -> int | None:
    """How many dims an Unsqueeze or a Squeeze with named axes adds."""
    axes = array(node.inputs[1]) if len(node.inputs) > 1 else attribute(node, "axes")
    if axes is None:
        return None
    return len(axes) if node.op_type == "Unsqueeze" else -len(axes)
