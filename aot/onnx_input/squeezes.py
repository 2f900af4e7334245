"""`Squeeze` without axes: which dims it drops depends on the sizes, unless the Dims decide it."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from aot.declaration import Input
from aot.errors import GraphError
from aot.onnx_input._instead import Instead, given, standard
from aot.onnx_input.ranges import Ranges


def name_axes(model: ir.Model, inputs: Mapping[str, Input]) -> int:
    """Give every `Squeeze` without axes those that are always 1, in place; returns how many were given.

    Raises GraphError where a dim is 1 at some sizes only: the rank of the result would not be the same at all of
    them, and no engine has that.
    """
    nodes = [node for node in model.graph.all_nodes() if standard(node, "Squeeze") and given(node, 1) is None]
    ranges = Ranges(model, inputs) if nodes else None
    done = 0
    for node in nodes:
        assert ranges is not None
        shape = ranges.shape(node.inputs[0])
        if shape is None:
            continue
        loose = [axis for axis, (low, high) in enumerate(shape) if low <= 1 <= high and low != high]
        if loose:
            low, high = shape[loose[0]]
            raise GraphError(
                f"Squeeze names no axes, and axis {loose[0]} has a size from {low} to {high}: it would be dropped at 1 "
                "and kept otherwise",
                where=f"node '{node.name}' (Squeeze)",
                fix="narrow the Dim so that the size is never 1 (--dim NAME=2:...), or always 1 (--dim NAME=1:1:1)",
            )
        axes = [axis for axis, (low, _) in enumerate(shape) if low == 1]
        put = Instead(node)
        made = put.op("Squeeze", [node.inputs[0], put.ints(*axes)]) if axes else put.op("Identity", [node.inputs[0]])
        done += put.done(made)
    return done
