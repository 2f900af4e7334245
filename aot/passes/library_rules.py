"""Rules of `onnxscript.rewriter` that this project relies on, grouped by what they are about."""

from __future__ import annotations

import onnx_ir as ir

from aot.graph import Skip, apply_rules, graph_pass


@graph_pass(
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,3,4,5] x) => (float[B,5,3,4] y)
    { a = Transpose<perm = [0, 2, 1, 3]>(x)  y = Transpose<perm = [0, 3, 2, 1]>(a) }
    """
)
def merge_views(model: ir.Model, skip: Skip) -> int:
    """Two transposes in a row are one whose permutation is their product; of two reshapes in a row the second
    suffices; two unsqueezes are one; a reshape to one dim of what was squeezed from one dim is neither."""
    from onnxscript.rewriter.rules import common as rules

    return apply_rules(
        model,
        [
            rules.transpose_transpose_rule,
            rules.no_op_transpose_rule,
            rules.reshape_reshape_rule,
            rules.unsqueeze_unsqueeze_rule,
            rules.squeeze_reshape_1d_rule,
        ],
    )


@graph_pass(
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,4] x, float[B,1] z) => (float[B,4] y) { s = Shape(x)  e = Expand(z, s)  y = Div(x, e) }
    """
)
def drop_expands(model: ir.Model, skip: Skip) -> int:
    """An elementwise op broadcasts by itself: f(x, Expand(z, shape)) = f(x, z) where x has that shape anyway."""
    from onnxscript.rewriter.rules import common as rules

    return apply_rules(model, list(rules.expand_before_binary_op_rules))


@graph_pass(
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,2] x) => (float[B,2] y) <float low = {0}, float high = {6}>
    { r = Relu(x)  y = Clip(r, low, high) }
    """
)
def merge_clips(model: ir.Model, skip: Skip) -> int:
    """Relu and Clip in a row are one Clip to the intersection of their intervals."""
    from onnxscript.rewriter.rules import common as rules

    return apply_rules(
        model,
        [
            rules.successive_relu_rule,
            rules.successive_clip_rule,
            rules.successive_clip_relu_rule,
            rules.successive_relu_clip_rule,
        ],
    )
