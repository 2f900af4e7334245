"""Arithmetic on sizes that need not be done, since the names of the dims say its results already."""

from __future__ import annotations

import itertools
from collections.abc import Hashable

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._contents import Contents, Number
from aot.passes._contents_shapes import target
from aot.passes._edit import attribute, bypass, constant, every_node, nodes, replace, tensor
from aot.passes._symbols import Polynomial

_SHAPE_FROM_TO = 15
"""The opset since which Shape takes a start and an end."""
_Run = tuple[ir.Node, int, int]
"""The dims of what a Shape node reads, from one to before another, counted from the first that the node tells."""


@graph_pass(
    in_one_sweep=True,
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,S,6] x) => (float[B,S,3,2] y) <int64 zero = {0}, int64[1] at = {0}, int64[2] tail = {3, 2}>
    { s = Shape(x)  b0 = Gather(s, zero)  b = Unsqueeze(b0, at)  n = Shape<start = 1, end = 2>(x)
      t = Concat<axis = 0>(b, n, tail)  y = Reshape<allowzero = 1>(x, t) }
    """,
    anchors=("Shape", "Size", "Reshape"),
)
def shape_arithmetic(model: ir.Model, skip: Skip) -> int:
    """What is computed from sizes is followed as polynomials of them, and

    - numbers that come out the same at all sizes, and comparisons with one answer, are constants;
    - of two tensors that hold the same numbers the second is the first; neighbouring dims of a tensor are one Shape;
    - Reshape(x, computed) = Reshape(x, constant), where 0 stands for a dim that x has at the same place and one -1 for
      what is left (a 0 is right for empty tensors as well, so it is preferred);
    - Reshape, Expand and Slice to the shape that a tensor has anyway are the tensor.

    Dims of the same name are equal at all sizes, as the format demands; none is negative.
    """
    if not any(map(_computes_sizes, nodes(model, "Shape", "Size", "Reshape", "Expand", "Slice"))):
        return 0
    return _sweep(model, skip)


def _computes_sizes(node: ir.Node) -> bool:
    return node.op_type in ("Shape", "Size") or any(tensor(value) is None for value in node.inputs[1:] if value)


def _sweep(model: ir.Model, skip: Skip) -> int:
    contents = Contents(model)
    known: dict[Hashable, ir.Value] = {}
    runs: dict[Hashable, _Run] = {}
    changed = 0
    for node in every_node(model):
        if node.domain:
            continue
        contents.visit(node)
        if node.op_type == "Reshape":
            changed += _reshape(model, node, contents, skip)
        elif node.op_type in ("Expand", "Slice"):
            changed += _unchanged(node, contents)
        if node.graph is None or node.op_type in ("Constant", "Identity") or len(node.outputs) != 1:
            continue
        changed += _known(model, node, contents, known, runs)
    return changed


def _known(
    model: ir.Model, node: ir.Node, contents: Contents, known: dict[Hashable, ir.Value], runs: dict[Hashable, _Run]
) -> int:
    """Replace what `node` computes by a constant, by what holds the same, or by a Shape; remember it otherwise.

    known: (graph, dtype, shape, *numbers) -> what holds them. runs: (graph, *numbers) -> the dims of a tensor.
    """
    (value,) = node.outputs
    held = contents.followed(value)
    if held is None or value.dtype is None or value.is_graph_output():
        return 0
    if not any(isinstance(one, Polynomial) for one in held.flat):
        value.replace_all_uses_with(constant(model, f"{value.name}_known", held.astype(value.dtype.numpy())))
        node.graph.remove(node, safe=True)  # type: ignore[union-attr]
        return 1
    key = value.dtype, held.shape, tuple(held.flat)
    first = known.get((node.graph, *key), known.get((model.graph, *key)))
    if first is not None:
        value.replace_all_uses_with(first)
        node.graph.remove(node, safe=True)  # type: ignore[union-attr]
        return 1
    graph = node.graph
    known[graph, *key] = value
    if node.op_type == "Shape":
        for start, end in itertools.combinations(range(len(held) + 1), 2):
            runs.setdefault((graph, *held[start:end]), (node, start, end))
        return 0
    if held.ndim != 1 or value.dtype != ir.DataType.INT64 or model.opset_imports.get("", 0) < _SHAPE_FROM_TO:
        return 0
    run = runs.get((graph, *held), runs.get((model.graph, *held)))
    if run is None:
        return 0
    source, start, end = run
    before = int(attribute(source, "start", 0)) % len(contents.dims(source.inputs[0]) or (0,))
    new = replace(node, "Shape", [source.inputs[0]], {"start": before + start, "end": before + end})
    known[graph, *key] = new.outputs[0]
    contents.hold(new.outputs[0], held)
    return 1


def _unchanged(node: ir.Node, contents: Contents) -> int:
    """Drop an Expand or a Slice whose output is its input."""
    x = node.inputs[0]
    before = contents.dims(x)
    if x is None or before is None or len(node.inputs) < 2:
        return 0
    if node.op_type == "Expand":
        to = contents.of(node.inputs[1])
        if to is None or len(to) > len(before):
            return 0
        same = all(size in (1, dim) for size, dim in zip(reversed(to), reversed(before), strict=False))
    else:
        starts, ends, axes, steps = (
            contents.of(node.inputs[at]) if at < len(node.inputs) else None for at in range(1, 5)
        )
        if starts is None or ends is None or (len(node.inputs) > 4 and steps is None):
            return 0
        along = range(len(starts)) if axes is None and len(node.inputs) < 4 else axes
        if along is None or any(isinstance(axis, Polynomial) for axis in along):
            return 0
        same = all(start == 0 for start in starts) and (steps is None or all(step == 1 for step in steps))
        same = same and all(end == before[axis] for end, axis in zip(ends, along, strict=True))
    if not same:
        return 0
    bypass(node, x)
    return 1


def _reshape(model: ir.Model, node: ir.Node, contents: Contents, skip: Skip) -> int:
    """Give a Reshape a constant target, or drop it."""
    if tensor(node.inputs[1]) is not None:
        return 0
    x = node.inputs[0]
    before, after = contents.dims(x), target(contents, node) or contents.dims(node.outputs[0])
    if x is None or before is None or after is None:
        skip(node, "the rank of the input or output is not known")
        return 0
    if before == after:
        bypass(node, x)
        return 1
    wanted = [_written(at, dim, before) for at, dim in enumerate(after)]
    if wanted.count(-1) > 1 or 0 in after:
        skip(node, f"more than one dim of {_listed(after)} cannot be copied from {_listed(before)}")
        return 0
    shape = constant(model, f"{node.outputs[0].name}_shape", np.array(wanted, np.int64))
    replace(node, "Reshape", [x, shape])
    return 1


def _written(at: int, dim: Number, before: list[Number]) -> int:
    if isinstance(dim, int):
        return dim
    return 0 if at < len(before) and dim == before[at] else -1


def _listed(sizes: list[Number]) -> str:
    return f"[{', '.join(map(str, sizes))}]"
