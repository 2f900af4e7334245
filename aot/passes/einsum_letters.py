"""Einsum equations in capital letters, which TensorRT's parser does not read."""

from __future__ import annotations

from string import ascii_lowercase

import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import attribute, nodes


@graph_pass(
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,3,4] x, float[B,4,5] y) => (float[B,3,5] z)
    { z = Einsum<equation = "AIj,AjK->AIK">(x, y) }
    """
)
def einsum_letters(model: ir.Model, skip: Skip) -> int:
    """Einsum(AIj,AjK->AIK) = Einsum(abd,adc->abc): letters are names, so small ones say the same.

    The new letters have the alphabetical order of the old (capitals first), since it is the order of the output's
    axes where an equation leaves the output out.
    """
    changed = 0
    for node in nodes(model, "Einsum"):
        equation = str(attribute(node, "equation", ""))
        letters = sorted({sign for sign in equation if sign.isalpha()})
        if not any(letter.isupper() for letter in letters):
            continue
        if len(letters) > len(ascii_lowercase):
            skip(node, f"it has {len(letters)} different letters")
            continue
        renamed = equation.translate(str.maketrans("".join(letters), ascii_lowercase[: len(letters)]))
        node.attributes["equation"] = ir.AttrString("equation", renamed)
        changed += 1
    return changed
