"""`If` nodes whose condition is the same at all sizes: the branch takes the place of the node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from aot.declaration import Dim, Input
from aot.onnx_input._instead import given, standard
from aot.onnx_input.ranges import Ranges
from aot.passes._edit import attribute
from aot.passes.known_branches import inline

UNDECIDED = "aot.undecided"
"""Metadata of an `If` that stays: what its condition depends on, and how to fix it."""


def resolve_branches(model: ir.Model, inputs: Mapping[str, Input]) -> int:
    """Replace every decidable `If` by its branch, in place; returns how many.

    An `If` is decidable where `Ranges` knows its condition. Those inside branches follow, as do those whose
    condition hangs on the shape that another branch left. What stays is marked with `UNDECIDED`.
    """
    from aot.graph import infer_shapes

    done = 0
    while True:
        nodes = [node for node in model.graph.all_nodes() if standard(node, "If")]
        if not nodes:
            return done
        ranges = Ranges(model, inputs)
        for node in nodes:
            taken = ranges.decided(node.inputs[0])
            if taken is not None:
                inline(model, node, attribute(node, "then_branch" if taken else "else_branch"))
                done += 1
                infer_shapes(model)
                break
        else:
            for node in nodes:
                node.metadata_props[UNDECIDED] = undecided(node, inputs, ranges)
            return done


def undecided(node: ir.Node, inputs: Mapping[str, Input], ranges: Ranges) -> str:
    """What the condition of an `If` depends on, and the option that would settle it."""
    fed = [str(v.name) for v in _sources(node.inputs[0]) if v.is_graph_input()]
    for name in fed:
        tensor = inputs.get(name)
        if tensor is not None and tensor.dtype.startswith("int") and not any(isinstance(d, Dim) for d in tensor.shape):
            return f"its condition depends on the value of input '{name}'; fix it: --dim {name}=VALUE:VALUE:VALUE"
    names = {d.name: d for value in _shaped(node.inputs[0]) for d in _dims(value, inputs)}
    if not names and fed:
        return f"its condition depends on the values of input '{fed[0]}'"
    if not names:
        names = {d.name: d for tensor in inputs.values() for d in tensor.shape if isinstance(d, Dim)}
    ask = [
        f"--dim {name}=2:{max(dim.bounds[1], 2)}:{dim.bounds[2]}" for name, dim in names.items() if dim.bounds[2] > 1
    ]
    sizes = ", ".join(f"{name} in {dim.bounds[0]}..{dim.bounds[2]}" for name, dim in names.items())
    if not ask:
        return "its condition is computed from data"
    return f"its condition is not the same at all sizes ({sizes}); narrow a Dim to one side, e.g. {' '.join(ask)}"


def _sources(value: ir.Value | None, seen: set[ir.Value] | None = None) -> Iterator[ir.Value]:
    """The values a condition is computed from, not looking past a Shape."""
    seen = set() if seen is None else seen
    if value is None or value in seen:
        return
    seen.add(value)
    yield value
    node = value.producer()
    if node is not None and not standard(node, "Shape", "Size"):
        for index in range(len(node.inputs)):
            yield from _sources(given(node, index), seen)


def _shaped(condition: ir.Value | None) -> Iterator[ir.Value]:
    """The values whose shape a condition asks for."""
    for value in _sources(condition):
        node = value.producer()
        if node is not None and standard(node, "Shape", "Size") and node.inputs[0] is not None:
            yield node.inputs[0]


def _dims(value: ir.Value, inputs: Mapping[str, Input]) -> list[Dim]:
    """The Dims of the graph inputs that a value is computed from."""
    seen: set[ir.Value] = set()
    stack, found = [value], []
    while stack:
        one = stack.pop()
        if one in seen:
            continue
        seen.add(one)
        if one.is_graph_input() and str(one.name) in inputs:
            found += [d for d in inputs[str(one.name)].shape if isinstance(d, Dim)]
        node = one.producer()
        if node is not None:
            stack += [v for v in node.inputs if v is not None]
    return found
