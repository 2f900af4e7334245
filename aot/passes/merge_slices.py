"""Slices of slices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import array, constant, dims, made_by, nodes, replace

_END = 2**63 - 1
_EVERYTHING = 2**31 - 1
"""No dim is larger: an end from here on is the end of the dim."""


@dataclass(frozen=True)
class _Part:
    """start:end:step along one axis, as Slice has them."""

    start: int
    end: int
    step: int


@graph_pass(
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,S,8] x) => (float[B,T,4] y) <int64[1] two = {2}, int64[1] last = {9223372036854775807},
      int64[1] one = {1}, int64[1] less = {-1}, int64[1] zero = {0}, int64[1] at = {2}>
    { a = Slice(x, two, last, one)  b = Slice(a, zero, less, one)  y = Slice(b, zero, last, at, two) }
    """,
    anchors=("Slice",),
)
def merge_slices(model: ir.Model, skip: Skip) -> int:
    """A slice of a slice is one slice, where all that reads the first is a slice: along different axes of both, along
    the same axis x[a:b:s][c:d:t] = x[a+sc : min(b, a+sd) : st] for starts and ends that are not negative and steps that
    are positive, x[a:][c:-d:t] = x[a+c:-d:t] and x[a:-b:s][c::t] = x[a+sc:-b:st]; any two where the size is known.
    """
    changed = 0
    for second in nodes(model, "Slice"):
        first = made_by(second.inputs[0], "Slice")
        if first is None or first.outputs[0].is_graph_output():
            continue
        if any(use.node.op_type != "Slice" or use.idx for use in first.outputs[0].uses()):
            continue
        shape = dims(first.inputs[0])
        inner, outer = _parts(first), _parts(second)
        if shape is None or inner is None or outer is None:
            skip(second, "its rank, its starts, ends or steps are not known")
            continue
        merged: dict[int, _Part | None] = dict(inner)
        for axis, part in outer.items():
            size = shape[axis]
            merged[axis] = _both(inner[axis], part, size if isinstance(size, int) else None) if axis in inner else part
        if any(part is None for part in merged.values()):
            skip(second, "the size that it cuts from is not known")
            continue
        kept = {axis: part for axis, part in sorted(merged.items()) if part is not None}
        numbers = (
            [part.start for part in kept.values()],
            [part.end for part in kept.values()],
            list(kept),
            [part.step for part in kept.values()],
        )
        name = second.outputs[0].name
        given = [
            constant(model, f"{name}_{what}", np.array(each, np.int64))
            for what, each in zip(("starts", "ends", "axes", "steps"), numbers, strict=True)
        ]
        replace(second, "Slice", [first.inputs[0], *(given if set(numbers[3]) != {1} else given[:3])])
        changed += 1
    return changed


def _parts(node: ir.Node) -> dict[int, _Part] | None:
    """axis -> part; None where one is computed, or in the attributes of opset 9 and older."""
    shape = dims(node.inputs[0])
    given = [array(value) for value in node.inputs[1:] if value is not None]
    if shape is None or len(given) < 2 or any(one is None for one in given):
        return None
    starts, ends, *rest = ([int(number) for number in one.reshape(-1)] for one in given if one is not None)
    named = len(node.inputs) > 3 and node.inputs[3] is not None
    axes = rest[0] if named else list(range(len(starts)))
    steps = rest[-1] if len(rest) > named else [1] * len(starts)
    return {
        axis % len(shape): _Part(start, end, step)
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True)
    }


def _both(first: _Part, second: _Part, size: int | None) -> _Part | None:
    """One part for two in a row; None where it depends on the size, which is not known."""
    if size is not None:
        found = range(size)[first.start : first.end : first.step][second.start : second.end : second.step]
        # Backwards to the very first element: an end of -1 would be the last one.
        return _Part(found.start, found.stop if found.stop >= 0 else -_END, found.step) if found else _Part(0, 0, 1)
    if min(first.start, second.start) < 0 or min(first.step, second.step) < 1:
        return None
    start, step = first.start + first.step * second.start, first.step * second.step
    if first.end >= 0 and second.end >= 0:
        end = min(first.end, first.start + first.step * second.end) if second.end < _EVERYTHING else first.end
    elif second.end >= _EVERYTHING:
        end = first.end
    elif first.end >= _EVERYTHING and first.step == 1:
        end = second.end
    else:
        return None
    return _Part(start, end if end < _EVERYTHING else _END, step)
