"""`ConstantOfShape` of a shape that is constant: a constant, which the folding of onnxscript leaves alone."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from aot.onnx_input._instead import Instead, standard
from aot.passes._edit import array, attribute

_ELEMENTS = 1024
"""Larger ones stay computed, so that the file does not grow."""


def fill_small(model: ir.Model) -> int:
    """Replace every small `ConstantOfShape` of a constant shape by its result, in place; returns how many.

    Pad widths and Reshape targets are put together from such pieces; until they are constant, no shape behind them is
    known.
    """
    sites = 0
    for node in tuple(model.graph.all_nodes()):
        if not standard(node, "ConstantOfShape"):
            continue
        shape, value = array(node.inputs[0]), attribute(node, "value")
        if shape is None or (size := int(np.prod(shape))) > _ELEMENTS or size < 0:
            continue
        number = np.zeros(1, np.float32) if value is None else value.numpy().reshape(-1)[:1]
        put = Instead(node)
        sites += put.done(put.constant(np.full([int(n) for n in shape], number[0], number.dtype)))
    return sites
