"""Folding of patches back into an image, which TensorRT does not have."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import array, attribute, constant, dims, nodes, replace


@graph_pass(
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,24,9] x) => (float[B,4,6,7] y) <int64[2] image = {6, 7}, int64[2] block = {3, 2}>
    { y = Col2Im<strides = [2, 2], pads = [1, 0, 1, 0], dilations = [1, 2]>(x, image, block) }
    """
)
def col2im_transposed(model: ir.Model, skip: Skip) -> int:
    """Col2Im(x) = Reshape(ConvTranspose(Reshape(x), one-hot)), every channel a picture of its own: entry k of a patch
    is added to the image at the k-th place of that patch, which is what a transposed convolution does whose kernel k
    is 1 at place k and 0 elsewhere.

    What the strides leave uncovered at the lower and right edge is zero, made by output_padding.
    """
    changed = 0
    for node in nodes(model, "Col2Im"):
        x, image, block = dims(node.inputs[0]), array(node.inputs[1]), array(node.inputs[2])
        if x is None or len(x) != 3 or not isinstance(x[1], int) or image is None or block is None:
            skip(node, "the sizes of the image and of its patches are not fixed")
            continue
        rank, entries = len(block), int(np.prod(block))
        strides = list(attribute(node, "strides", [1] * rank))
        dilations = list(attribute(node, "dilations", [1] * rank))
        pads = list(attribute(node, "pads", [0] * (2 * rank)))
        reach = [int(image[i]) + pads[i] + pads[i + rank] - dilations[i] * (int(block[i]) - 1) - 1 for i in range(rank)]
        counts = [length // stride + 1 for length, stride in zip(reach, strides, strict=True)]
        name = f"{node.outputs[0].name}_fold"
        shape = constant(model, f"{name}_patches", np.array([-1, entries, *counts], np.int64))
        places = constant(model, f"{name}_places", np.eye(entries, dtype=np.float32).reshape(entries, 1, *block))
        attributes = {"strides": strides, "dilations": dilations, "pads": pads}
        attributes["output_padding"] = [length % stride for length, stride in zip(reach, strides, strict=True)]
        origin = dict(node.metadata_props)
        patches = ir.node("Reshape", [node.inputs[0], shape], metadata_props=origin)
        pictures = ir.node("ConvTranspose", [patches.outputs[0], places], attributes, metadata_props=dict(origin))
        assert node.graph is not None
        node.graph.insert_before(node, [patches, pictures])
        whole = constant(model, f"{name}_image", np.array([-1, x[1] // entries, *image], np.int64))
        replace(node, "Reshape", [pictures.outputs[0], whole])
        changed += 1
    return changed
