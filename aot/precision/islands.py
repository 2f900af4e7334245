"""Which nodes stay FP32 in a FP16 or BF16 network, and why."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from aot.precision.cancellation import SHARE, cancelling
from aot.precision.chains import denominators, fused_norms, integers_in_floats, long_sums, norm_statistics
from aot.precision.constants import examine
from aot.precision.formats import Float
from aot.precision.reading import (
    ELEMENTWISE,
    MOVES,
    Observed,
    computed,
    consumers,
    figure,
    has_subgraph,
    is_constant,
    is_float,
)
from aot.precision.rules import stays_wide
from aot.precision.schemas import slots
from aot.precision.sensitive import absolute, vanishing

# Observed on calibration data; other data may go this much further.
SAFETY = 2.0


@dataclass(frozen=True)
class Islands:
    """wide: the nodes that compute in FP32, each with its reason. clamp: initializers and their new magnitude."""

    wide: Mapping[ir.Node, str]
    clamp: Mapping[ir.Value, float]


def find_islands(
    graph: ir.Graph,
    observed: Observed,
    compute: Float,
    opset: int,
    ops: Collection[str] = (),
    kept: Mapping[ir.Node, str] | None = None,
) -> Islands:
    """Collect the islands, from what cannot be narrow to what would only be cast there and back.

    observed: extremes, never ranges that a calibrator has clipped. ops: operator types that stay FP32 whatever their
    range. kept: nodes that do, each with its reason.
    """
    wide: dict[ir.Node, str] = dict(kept or {})

    def add(found: Mapping[ir.Node, str]) -> None:
        for node, reason in found.items():
            wide.setdefault(node, reason)

    add(_fixed(graph, compute, opset, ops))
    constants = examine(graph, compute)
    if compute.name == "fp16":
        add(constants.wide)
        add(
            {
                node: f"leads the constant of {start.name} to a division"
                for node, start in denominators(constants.tiny).items()
            }
        )
        add(_out_of_range(graph, observed, constants.masked, compute))
        add(fused_norms(graph, observed, compute))
        add(vanishing(graph, observed, compute))
    add(absolute(graph, observed, constants.masked, compute))
    add(cancelling(graph, observed, SHARE * compute.exact))
    add(norm_statistics(graph))
    add(long_sums(graph))
    add(integers_in_floats(graph, observed, constants.masked, compute))
    wide = {node: reason for node, reason in wide.items() if node.graph is graph}
    wide.update(_enclosed(graph, wide))
    return Islands(wide, constants.clamp if compute.name == "fp16" else {})


def _fixed(graph: ir.Graph, compute: Float, opset: int, ops: Collection[str]) -> dict[ir.Node, str]:
    """Nodes whose type decides."""
    found: dict[ir.Node, str] = {}
    for node in graph:
        narrow = slots(node, compute.onnx, opset)
        if has_subgraph(node):
            found[node] = "holds a subgraph, which stays as it is"
        elif not any(is_float(v) for v in (*node.inputs, *node.outputs)):
            continue
        elif node.op_type in ops:
            found[node] = f"the recipe keeps {node.op_type} in FP32"
        elif (reason := stays_wide(compute.name, node.op_type)) is not None:
            found[node] = reason
        elif narrow is None:
            found[node] = f"no schema says which dtypes {node.domain}::{node.op_type} takes"
        elif not narrow:
            found[node] = f"ONNX gives {node.op_type} no {compute.name.upper()} form at opset {opset}"
    return found


def _out_of_range(
    graph: ir.Graph, observed: Observed, masked: Collection[ir.Value], compute: Float
) -> dict[ir.Node, str]:
    """Nodes that read or write a value whose observed magnitude x SAFETY leaves the range (or is not finite), or that
    stays below the smallest normal number altogether."""
    found: dict[ir.Node, str] = {}
    for node in graph:
        for value in (*computed(node), *(v for v in node.outputs if is_float(v))):
            amax = observed.of(value)
            if amax is None or value in masked:
                continue
            form = compute.name.upper()
            if not amax * SAFETY <= compute.top:
                found[node] = f"{value.name} reached {figure(amax)}; x {SAFETY:g} it exceeds {form}'s {compute.top:g}"
                break
            if 0 < amax < compute.tiny:
                found[node] = (
                    f"{value.name} reached only {figure(amax)}; {form} loses values below {figure(compute.tiny)}"
                )
                break
    return found


def _enclosed(graph: ir.Graph, wide: Mapping[ir.Node, str]) -> dict[ir.Node, str]:
    """Cheap nodes between islands: narrow, they would only round what is cast back at once.

    Connected groups of moves and elementwise nodes are taken together; a group joins the islands where at
    least one neighbour is wide and no neighbour is narrow. Graph inputs and outputs count as neither.
    """
    light = {
        n: None
        for n in graph
        if n not in wide and n.op_type in MOVES | ELEMENTWISE and any(is_float(v) for v in n.outputs)
    }
    found: dict[ir.Node, str] = {}
    done: set[ir.Node] = set()
    for start in light:
        if start in done:
            continue
        group, queue, near_wide, near_narrow = {start: None}, [start], False, False
        while queue:
            node = queue.pop()
            neighbours = [v.producer() for v in node.inputs if v is not None and is_float(v) and not is_constant(v)]
            neighbours += [n for v in node.outputs if is_float(v) for n in consumers(v)]
            for other in neighbours:
                if other is None:
                    continue
                if other in wide or other.graph is not graph:
                    near_wide = True
                elif other not in light:
                    near_narrow = near_narrow or other.op_type not in {"Shape", "Size"}
                elif other not in group:
                    group[other] = None
                    queue.append(other)
        done.update(group)
        if near_wide and not near_narrow:
            found.update((node, "lies between FP32 nodes only") for node in group)
    return found
