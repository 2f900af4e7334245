"""What the layers of an engine are made of: nodes of the final graph, with their ops, modules, lines and precisions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aot.records import Program

if TYPE_CHECKING:
    from aot.artifact import Prepared
    from aot.backend import LayerTime

CONVERSION = "conversion"
"""What stands for the precision of layers that only convert: Q/DQ, casts, other layouts."""
_CONVERTING = frozenset({"QuantizeLinear", "DequantizeLinear", "Cast"})
_HEAVY = ("Conv", "ConvTranspose", "MatMul", "Gemm", "LSTM", "GRU", "RNN", "Attention")
_BITS = {"int4": 4, "int8": 8, "fp8": 8, "fp16": 16, "bf16": 16, "fp32": 32}


@dataclass(frozen=True)
class Node:
    """A node of the final graph. precision: as the build decided; empty for what it put in (Q/DQ, casts)."""

    name: str
    op: str
    module: str = ""
    source: str = ""
    precision: str = ""


def nodes_of(prepared: Prepared) -> dict[str, Node]:
    """Every node that a layer may be made of, by name; none of a program of torch's, whose layers name no nodes."""
    found: dict[str, Node] = {}
    if not isinstance(prepared.final, Program):
        from aot.backends._graph import load_structure, nodes, origin

        decided = {one["node"]: one["precision"] for one in prepared.final.facts.get("decisions", ())}
        for node in nodes(load_structure(prepared.final.model).graph):
            came = origin(node)
            module, source = (came.module, came.place) if came is not None else ("", "")
            found[node.name] = Node(node.name, node.op_type, module, source, decided.get(node.name, ""))
    for one in prepared.kernels:
        for place in one.facts.get("attention", {}).get("places", ()):
            found.setdefault(
                place["node"],
                Node(place["node"], "Attention", place["module"], place["source"], prepared.plan.recipe.compute),
            )
    return found


@dataclass(frozen=True)
class Layer:
    """A layer and what it is made of. main: the node that it is put down to; None where no node is known."""

    name: str
    ms: float
    nodes: tuple[Node, ...]
    main: Node | None

    @property
    def ops(self) -> str:
        """`MatMul+Add+Gelu`, without what only converts unless there is nothing else."""
        ops = list(dict.fromkeys(node.op for node in self.nodes))
        return "+".join([op for op in ops if op not in _CONVERTING] or ops)

    @property
    def precision(self) -> str:
        """The narrowest that one of its nodes computes in, for that is what its products are of."""
        known = [node.precision for node in self.nodes if node.precision]
        return min(known, key=lambda one: _BITS.get(one, 64), default=CONVERSION)


def attributed(times: Sequence[LayerTime], known: Mapping[str, Node]) -> list[Layer]:
    """Each layer with its nodes: those that it says it is made of, else those whose names stand in its own.

    A layer is put down to its heaviest node, the first convolution, product or recurrence; else to the first that
    computes anything; else to the first.
    """
    layers = []
    for one in times:
        named = one.nodes or tuple(_words(one.layer))
        nodes = tuple(known[name] for name in dict.fromkeys(named) if name in known)
        main = min(nodes, key=lambda node: (node.op not in _HEAVY, not node.precision), default=None)
        layers.append(Layer(one.layer, one.ms, nodes, main))
    return layers


def _words(layer: str) -> list[str]:
    """The names in a layer's: `a + b`, `PWN(a)`, `{ForeignNode[a...b]}`, `Reformatting CopyNode for ... a`."""
    words = re.findall(r"[^\s\[\](){},:;+'\"]+", layer)
    return [part for word in words for part in (word, *word.split("..."))]
