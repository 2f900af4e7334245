"""Chains of Reshape, Transpose, Squeeze and Unsqueeze, as the shortest chain that moves the elements alike."""

from __future__ import annotations

import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import array, bypass, dims, made_by, nodes, only_user, replace
from aot.passes._views import VIEWS, Layout, arguments, chain, insert, views


@graph_pass(
    anchors=VIEWS,
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[7,B,8] x) => (float[B,4,7,2] y)
    <int64[3] apart = {7, -1, 2}, int64[4] heads = {-1, 4, 7, 2}>
    { r = Reshape(x, apart)  t = Transpose<perm = [1, 0, 2]>(r)  y = Reshape(t, heads) }
    """,
)
def view_chains(model: ir.Model, skip: Skip) -> int:
    """A chain of Reshape, Transpose, Squeeze and Unsqueeze orders the factors of the dims anew; at most it is a Reshape
    into those factors, a Transpose, and a Reshape that joins them, and less where a neighbouring shape is the same. The
    shapes are constants, with 0 for a dim that stays and -1 for one that is left.
    """
    changed = 0
    for last in nodes(model, *VIEWS):
        found = chain(last)
        reader = only_user(last.outputs[0])
        if reader is not None and reader.graph is last.graph and made_by(reader.outputs[0], *VIEWS) is reader:
            continue  # The chain goes on.
        if len(found) == 1 and not _computed(last):
            continue
        source = found[0].inputs[0]
        layout = Layout.of(dims(source))
        if source is None or layout is None or not all(map(layout.apply, found)):
            continue
        fewest = views(layout)
        if fewest is None:
            skip(last, "the sizes in between cannot be told to a Reshape")
        elif len(fewest) < len(found) + sum(map(_computed, found)):
            value = insert(model, fewest[:-1], source, last, str(last.outputs[0].name))
            if fewest:
                replace(last, fewest[-1].op, *arguments(model, fewest[-1], value, str(last.outputs[0].name)))
            else:
                bypass(last, source)
            changed += 1
    return changed


def _computed(node: ir.Node) -> bool:
    """Whether it is a Reshape to a shape that is computed, by other nodes."""
    return node.op_type == "Reshape" and array(node.inputs[1]) is None
