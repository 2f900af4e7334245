"""Names that no value of a graph has: a model may call a constant of its own `x_scale`."""

from __future__ import annotations

import onnx_ir as ir


class Names:
    """The names of a graph's values, those of its bodies included, and of what is added through `unique`."""

    def __init__(self, graph: ir.Graph) -> None:
        self._taken = {value.name for node in graph.all_nodes() for value in node.outputs} | set(graph.initializers)
        self._taken |= {value.name for value in graph.inputs}

    def unique(self, base: str) -> str:
        """`base`, or `base_1`, ...; taken from then on."""
        name, count = base, 1
        while name in self._taken:
            name, count = f"{base}_{count}", count + 1
        self._taken.add(name)
        return name
