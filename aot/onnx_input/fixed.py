"""Integer inputs that can have one value only, as constants."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from aot.declaration import Input
from aot.passes._edit import constant


def fix_values(model: ir.Model, inputs: Mapping[str, Input]) -> int:
    """Let the readers of an integer input of fixed shape and one value read a constant, in place; returns how many.

    The input stays, and nothing reads it. So `--dim axes=1:1:1` makes of a computed axis one that a builder takes.
    """
    sites = 0
    for value in model.graph.inputs:
        declared = inputs[str(value.name)]
        shape = [size for size in declared.shape if isinstance(size, int)]
        single = declared.low is not None and declared.high is not None and declared.high - declared.low == 1
        if not single or len(shape) < len(declared.shape) or not tuple(value.uses()):
            continue
        assert value.dtype is not None
        filled = np.full(shape, int(declared.low or 0), value.dtype.numpy())
        ir.convenience.replace_all_uses_with(value, constant(model, f"{value.name}_fixed", filled))
        sites += 1
    return sites
