"""`Loop` that runs a known number of times, and does little each time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.graph.state import inner_graphs, walk
from aot.passes._edit import attribute, constant, dims, made_by, nodes, opset, scalar
from aot.passes.known_branches import put_in_place

GROWTH = 64
"""Nodes by which a graph may grow for one Loop."""


@graph_pass(
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,4] x) => (float[B,4] y) <int64 three = {3}, bool yes = {1}> {
      z = Loop (three, yes, x) <body = b (int64 i, bool go, float[B,4] h) => (bool on, float[B,4] t)
        { on = Identity(go)  n = Cast<to = 1>(i)  s = Sin(h)  t = Add(s, n) }>
      y = Neg(z) }
    """,
    anchors=("Loop",),
)
def unroll_loops(model: ir.Model, skip: Skip) -> int:
    """A Loop that runs n times, for n > 0 that is a constant, is its body n times, each time reading what the last one
    made; what it collects is joined along a new first axis.

    Only where the graph grows by fewer than 64 nodes: then what is behind one step and in front of the next is
    rewritten, too, and an engine need not ask after each whether there is another.
    """
    changed = 0
    for node in nodes(model, "Loop") if opset(model) >= 13 else ():
        body: ir.Graph = attribute(node, "body")
        times = scalar(node.inputs[0])
        if times is None or (node.inputs[1] is not None and scalar(node.inputs[1]) is None):
            skip(node, "how many times it runs is computed")
        elif times < 1 or scalar(node.inputs[1]) == 0:
            skip(node, "it never runs")
        elif not _goes_on(body):
            skip(node, "it may end before the last time")
        elif (growth := int(times) * (_count(body) + _collected(node, body)) - _count(body) - 1) >= GROWTH:
            skip(node, f"unrolled, it would be {growth} nodes more")
        else:
            put_in_place(node, *_unrolled(model, node, body, int(times)))
            changed += 1
    return changed


def _count(body: ir.Graph) -> int:
    return sum(1 for _ in walk(body, everywhere=True))


def _collected(node: ir.Node, body: ir.Graph) -> int:
    """How many results it collects, one at each step."""
    return len(node.outputs) - (len(body.inputs) - 2)


def _goes_on(body: ir.Graph) -> bool:
    """Whether the body asks for the next step whenever it was asked for itself."""
    value: ir.Value | None = body.outputs[0]
    while (copied := made_by(value, "Identity")) is not None:
        value = copied.inputs[0]
    return value is body.inputs[1] or scalar(value) == 1


def _unrolled(model: ir.Model, node: ir.Node, body: ir.Graph, times: int) -> tuple[list[ir.Node], list[ir.Value]]:
    """The nodes of all steps, and what they make in the place of the Loop's outputs."""
    last = [value for value in node.inputs[2:] if value is not None]
    collected: list[list[ir.Value]] = [[] for _ in range(_collected(node, body))]
    going = node.inputs[1] or constant(model, f"{node.outputs[0].name}_goes", np.array(True))
    steps: list[ir.Node] = []
    for number in range(times):
        nodes, results = _step(model, body, number, [going, *last])
        steps += nodes
        last, more = results[: len(last)], results[len(last) :]
        for values, value in zip(collected, more, strict=True):
            values.append(value)
    results = last
    for output, values in zip(node.outputs[len(last) :], collected, strict=True):
        steps += _joined(model, f"{output.name}_joined", values)
        results.append(steps[-1].outputs[0])
    return steps, results


def _step(
    model: ir.Model, body: ir.Graph, number: int, given: Sequence[ir.Value]
) -> tuple[list[ir.Node], list[ir.Value]]:
    """Copies of the nodes of a body, which read what is `given` and the number of the step; and what it hands out."""
    copy = body.clone(allow_outer_scope_values=True)
    counter = np.full((1,) * len(dims(copy.inputs[0]) or ()), number, np.int64)
    read = dict(zip(copy.inputs, (constant(model, f"{body.inputs[0].name}_{number}", counter), *given), strict=True))
    results = [read.get(value, value) for value in copy.outputs[1:]]
    copy.outputs.clear()
    for value, instead in read.items():
        value.replace_all_uses_with(instead)
    for node in walk(copy, everywhere=True):
        node.name = f"{node.name}_step{number}" if node.name else node.name
        for value in node.outputs:
            value.name = f"{value.name}_step{number}" if value.name else value.name
        for inner in inner_graphs(node.attributes.values()):
            inner.meta.clear()  # it is another graph
    nodes = list(copy)
    copy.remove(nodes)
    return nodes, results


def _joined(model: ir.Model, name: str, values: Sequence[ir.Value]) -> list[ir.Node]:
    """Nodes that join values along a new first axis; the last one makes the result."""
    first = constant(model, f"{name}_axis", np.array([0], np.int64))
    made = [ir.node("Unsqueeze", [value, first], name=f"{name}_{at}") for at, value in enumerate(values)]
    for node in made:
        node.outputs[0].name = node.name
    if len(made) > 1:
        made.append(ir.node("Concat", [node.outputs[0] for node in made], {"axis": 0}, name=name))
        made[-1].outputs[0].name = name
    return made
