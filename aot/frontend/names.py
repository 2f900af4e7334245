"""The interface of an ONNX graph: dims called as declared, outputs as asked, everything else out of their way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import onnx_ir as ir

from aot.declaration import Dim, ModelSpec

Refuse = Callable[[str, int, Dim, object], None]


def name_dims(graph: ir.Graph, spec: ModelSpec, refuse: Refuse) -> None:
    """Name every symbolic dimension after its Dim, wherever it occurs.

    Calls `refuse(input, axis, Dim, size)` for an axis that was declared dynamic and is fixed in the graph.
    """
    names: dict[str, str] = {}
    for value in graph.inputs:
        declared = spec.inputs.get(value.name or "")
        if declared is None or value.shape is None:
            continue
        for axis, dim in enumerate(declared.shape):
            if not isinstance(dim, Dim):
                continue
            found = value.shape[axis]
            if isinstance(found, int):
                refuse(str(value.name), axis, dim, found)
            elif found.value is not None:
                names[str(found.value)] = dim.name
                step = re.fullmatch(rf"{dim.multiple_of}\*(\w+)", str(found.value))
                if step:  # a Dim in steps is traced as a multiple of another size, which other axes may have
                    names[step[1]] = f"({dim.name}//{dim.multiple_of})"
    if not names:
        return
    pattern = re.compile(r"\b(" + "|".join(sorted(map(re.escape, names), key=len, reverse=True)) + r")\b")
    for value in values(graph):
        if value.shape is None:
            continue
        dims: list[int | str | None] = [d if isinstance(d, int) else d.value for d in value.shape]
        renamed = [_readable(pattern.sub(lambda m: names[m[1]], d)) if isinstance(d, str) else d for d in dims]
        if renamed != dims:
            value.shape = ir.Shape(renamed)


def _readable(expression: str) -> str:
    """The same expression without sympy's names and without parentheses that say nothing: `((t//2)) + 1` as
    `(t//2) + 1`, `(2*t)` as `2*t`."""
    text = re.sub(r"ToFloat\((\w+)\)", r"\1", expression)
    text = text.replace("TruncToInt", "trunc").replace("FloorToInt", "floor")
    while True:
        opened: list[int] = []
        closed: dict[int, int] = {}
        for place, sign in enumerate(text):
            if sign == "(":
                opened.append(place)
            elif sign == ")" and opened:
                closed[opened.pop()] = place
        idle = ((i, j) for i, j in closed.items() if (i, j) == (0, len(text) - 1) or closed.get(i + 1) == j - 1)
        first = next(idle, None)
        if first is None:
            return text
        text = text[: first[0]] + text[first[0] + 1 : first[1]] + text[first[1] + 1 :]


def name_outputs(graph: ir.Graph, names: Sequence[str]) -> None:
    """Give the outputs these names, in order.

    An output that is an input, a weight, or the same value as another output gets an Identity of its own,
    since one value has one name; an internal value that holds a name of the interface is renamed.
    """
    seen: set[ir.Value] = set(graph.inputs) | set(graph.initializers.values())
    for index, value in enumerate(graph.outputs):
        if value in seen:
            copied = ir.Node("", "Identity", [value], name=f"node_output_{index}")
            copied.outputs[0].shape, copied.outputs[0].type = value.shape, value.type
            graph.append(copied)
            graph.outputs[index] = copied.outputs[0]
        seen.add(graph.outputs[index])
    outputs = list(graph.outputs)
    inputs = {value.name for value in graph.inputs}
    reserved = set(names) | inputs
    used = {value.name for value in values(graph)} | reserved
    interface = set(outputs) | set(graph.inputs)
    for value in values(graph):
        if value not in interface and value.name in reserved:
            _rename(value, used)
    for value in outputs:  # first out of each other's way, then to their names
        _rename(value, used)
    for value, name in zip(outputs, names, strict=True):
        value.name = name


def _rename(value: ir.Value, used: set[str | None]) -> None:
    number = 1
    while f"{value.name}_{number}" in used:
        number += 1
    value.name = f"{value.name}_{number}"
    used.add(value.name)


def values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Inputs, weights and node outputs, those of subgraphs included, each once."""
    seen: set[int] = set()
    for part in (graph, *graph.subgraphs()):
        produced = (output for node in part for output in node.outputs)
        for value in (*part.inputs, *part.initializers.values(), *produced):
            if id(value) not in seen:
                seen.add(id(value))
                yield value
