"""Padding that the node behind it does by itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import array, attribute, constant, dims, made_by, nodes, only_user, replace


@graph_pass(
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,1,S,4] x) => (float[B,1,T,4] y)
    <int64[8] rows = {0, 0, 1, 0, 0, 0, 2, 0}, int64[8] columns = {0, 0, 0, 1, 0, 0, 0, 1}, float[1,1,3,3] w = {1, 2,
     3, 4, 5, 6, 7, 8, 9}>
    { a = Pad(x, rows)  b = Pad(a, columns)  y = Conv(b, w) }
    """,
    anchors=("Pad",),
)
def merge_pads(model: ir.Model, skip: Skip) -> int:
    """Two pads with the same constant are one by the sum of both, where neither cuts off; a pad with zeros around the
    image is the padding of the convolution that reads it, or of the average pool that counts its padding; so is one in
    front of an Unsqueeze, which moves behind it.
    """
    changed = _behind_unsqueeze(model)
    for node in nodes(model, "Pad", "Conv", "AveragePool"):
        pad = made_by(node.inputs[0], "Pad")
        pads = _pads(pad)
        if pad is None or pads is None or only_user(pad.outputs[0]) is not node:
            continue
        if node.op_type == "Pad":
            more = _pads(node)
            if more is None or len(more) != len(pads) or _fill(pad) != _fill(node) or _fill(pad) is None:
                continue
            total = constant(model, f"{node.outputs[0].name}_pads", np.array(pads) + np.array(more))
            fill = [value for value in pad.inputs[2:3] if value is not None]
            replace(node, "Pad", [pad.inputs[0], total, *fill])
        elif not _into(node, pad, pads):
            skip(node, "it cannot pad in the way that its input is padded")
            continue
        changed += 1
    return changed


def _behind_unsqueeze(model: ir.Model) -> int:
    """Unsqueeze(Pad(x)) = Pad(Unsqueeze(x)) with nothing along the new dims, where a convolution reads it."""
    changed = 0
    for conv in nodes(model, "Conv"):
        view = made_by(conv.inputs[0], "Unsqueeze")
        pad = made_by(view.inputs[0], "Pad") if view is not None else None
        pads, shape = _pads(pad), dims(conv.inputs[0])
        if view is None or pad is None or pads is None or shape is None or _fill(pad) != 0:
            continue
        if only_user(view.outputs[0]) is not conv or only_user(pad.outputs[0]) is not view:
            continue
        axes = array(view.inputs[1]) if len(view.inputs) > 1 else np.array(attribute(view, "axes"))
        if axes is None:
            continue
        wide = np.zeros((2, len(shape)), np.int64)
        new = {int(axis) % len(shape) for axis in axes.reshape(-1)}
        wide[:, [axis for axis in range(len(shape)) if axis not in new]] = np.reshape(pads, (2, -1))
        behind = constant(model, f"{view.outputs[0].name}_pads", wide.reshape(-1))
        inner = ir.node("Unsqueeze", [pad.inputs[0], *view.inputs[1:]], view.attributes, name=f"{pad.name}_view")
        assert view.graph is not None
        view.graph.insert_before(view, inner)
        inner.outputs[0].type = view.outputs[0].type
        replace(view, "Pad", [inner.outputs[0], behind, *(value for value in pad.inputs[2:3] if value is not None)])
        changed += 1
    return changed


def _pads(node: ir.Node | None) -> list[int] | None:
    """The constant pads of a Pad of opset 11 and later with a constant, for all axes; None for anything else."""
    if node is None or attribute(node, "mode", "constant") != "constant" or len(node.inputs) < 2:
        return None
    held, shape = array(node.inputs[1]), dims(node.inputs[0])
    if held is None or shape is None or np.any(held < 0):
        return None
    if len(node.inputs) < 4 or node.inputs[3] is None:
        return [int(one) for one in held]
    axes = array(node.inputs[3])
    if axes is None:
        return None
    full = [0] * (2 * len(shape))
    for at, axis in enumerate(int(one) % len(shape) for one in axes):
        full[axis], full[axis + len(shape)] = int(held[at]), int(held[at + len(axes)])
    return full


def _fill(node: ir.Node) -> float | None:
    """What is padded with; None where it is computed."""
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return 0.0
    held = array(node.inputs[2])
    return None if held is None else float(held.item())


def _into(node: ir.Node, pad: ir.Node, pads: Sequence[int]) -> bool:
    """Let a Conv or an AveragePool pad by itself; whether it can."""
    half = len(pads) // 2
    spatial = [*pads[2:half], *pads[half + 2 :]]
    own = list(attribute(node, "pads", [0] * len(spatial)))
    if any(pads[:2]) or any(pads[half : half + 2]) or _fill(pad) != 0 or len(own) != len(spatial):
        return False
    if attribute(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID") or (any(own) and "auto_pad" in node.attributes):
        return False
    together = [a + b for a, b in zip(own, spatial, strict=True)]
    kept = {name: value for name, value in node.attributes.items() if name not in ("auto_pad", "pads")}
    if node.op_type == "AveragePool":
        kernel = attribute(node, "kernel_shape")
        within = all(pad < kernel[at % len(kernel)] for at, pad in enumerate(together))
        if (any(own) and not attribute(node, "count_include_pad", 0)) or attribute(node, "ceil_mode", 0) or not within:
            return False
        kept["count_include_pad"] = ir.AttrInt64("count_include_pad", 1)
    replace(node, node.op_type, [pad.inputs[0], *node.inputs[1:]], {**kept, "pads": together})
    return True
