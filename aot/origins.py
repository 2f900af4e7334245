"""Where a node of a graph comes from: the module and the source line, kept in the node's metadata.

Two keys of `metadata_props` hold it: `aot.module` (`encoder.layer.0.attention`) and `aot.source`
(`models/bert.py:213 in forward: scores = ...`). They are written once, right after a graph came to be
(`aot.frontend.origins`, `aot.sources.onnx_file`), and every later edit hands them on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

MODULE = "aot.module"
SOURCE = "aot.source"

_WRITTEN = re.compile(r"(?P<file>.+?):(?P<line>\d+)(?: in (?P<function>[^:]*))?(?:: (?P<code>.*))?", re.DOTALL)


@dataclass(frozen=True)
class Origin:
    """Where a node comes from.

    module: the path of the innermost module, empty for the model itself. file: relative to the project's folder where
    it lies inside, else from the root of its package (`transformers/models/bert/modeling_bert.py`), so that it is the
    same on every machine; empty where it is not known. line: from 1. function, code: the function around the line and
    the line's text, each empty where not known.

    A node of an ONNX file that knows nothing better has its own name as `module`, the file's name as `file`, 0 as
    `line` and its op type as `function`.
    """

    module: str = ""
    file: str = ""
    line: int = 0
    function: str = ""
    code: str = ""

    @property
    def place(self) -> str:
        """`models/bert.py:213`; the file alone where no line is known, empty where no file is."""
        return f"{self.file}:{self.line}" if self.line else self.file

    @property
    def of_file(self) -> bool:
        """Whether it is a node of an ONNX file rather than a line of source."""
        return bool(self.file) and self.line == 0

    def __str__(self) -> str:
        """One line: `encoder.layer.0.attention, models/bert.py:213: scores = ...`, or `node 'Conv_12' of x.onnx`."""
        if self.of_file:
            return f"node '{self.module}' of {self.file}"
        place = f"{self.place}: {self.code}" if self.code else self.place
        return ", ".join(part for part in (self.module, place) if part)

    def metadata(self) -> dict[str, str]:
        """As `metadata_props` hold it; `read` is the inverse."""
        source = self.file and f"{self.file}:{self.line}"
        source += f" in {self.function}" if self.function else ""
        source += f": {self.code}" if self.code else ""
        return {MODULE: self.module, SOURCE: source}

    def to_json(self) -> dict[str, str]:
        """`{module, source}`, what reports say of a node."""
        return {"module": self.module, "source": "" if self.of_file and not self.file else self.place}


def read(metadata: Mapping[str, str]) -> Origin | None:
    """The origin that a node's metadata hold; None where there is none."""
    if MODULE not in metadata and SOURCE not in metadata:
        return None
    found = _WRITTEN.fullmatch(metadata.get(SOURCE, ""))
    if found is None:
        return Origin(metadata.get(MODULE, ""))
    file, line, function, code = found.group("file", "line", "function", "code")
    return Origin(metadata.get(MODULE, ""), file, int(line), function or "", code or "")


def of(node: ir.Node) -> Origin | None:
    """The origin of a node; None for one that has none yet."""
    return read(node.metadata_props)


def set(node: ir.Node, origin: Origin | None) -> None:  # noqa: A001 - reads as origins.set(node, ...)
    """Give a node an origin in place of what it had; None changes nothing."""
    if origin is not None:
        node.metadata_props.update(origin.metadata())


def hand_on(source: ir.Node, to: ir.Node) -> None:
    """Give `to` the origin of `source`."""
    set(to, of(source))


def describe(node: ir.Node) -> str:
    """`encoder.layer.0.attention, models/bert.py:213: scores = ...`; the node's name and op where it has no origin."""
    origin = of(node)
    return str(origin) if origin is not None and str(origin) else f"node '{node.name}' ({node.op_type})"


def modules(origin: Origin | None) -> Iterator[str]:
    """The module's path and those around it, innermost first: `a.b.c`, `a.b`, `a`."""
    path = origin.module if origin is not None else ""
    while path:
        yield path
        path = path.rpartition(".")[0]


def by_value(model: ir.Model) -> dict[str, Origin]:
    """The name of every computed value -> the origin of the node that computes it."""
    return {
        value.name: origin
        for node in every_node(model)
        if (origin := of(node)) is not None
        for value in node.outputs
        if value.name
    }


def inherit(model: ir.Model, before: Mapping[str, Origin]) -> None:
    """Give every node that a rewrite made and left without origin that of what it replaced.

    `before` is `by_value` of the model before the rewrite. In this order: the origin of the node that computed a value
    of the same name, whose place the new node took; of the first node that reads it, which it was made for; of the
    first node it reads; of the node whose subgraph holds it.
    """
    open_nodes = []
    for node in every_node(model):
        if of(node) is None:
            set(node, next((before[v.name] for v in node.outputs if v.name in before), None))
            open_nodes.append(node)
    for node in reversed(open_nodes):
        if of(node) is None:
            set(node, next(filter(None, (of(use.node) for v in node.outputs for use in v.uses())), None))
    for node in open_nodes:
        if of(node) is None:
            makers = (v.producer() for v in node.inputs if v is not None)
            set(node, next(filter(None, (of(maker) for maker in makers if maker is not None)), None))
    for holder in every_node(model):
        for graph in subgraphs(holder):
            for node in graph:
                if of(node) is None:
                    hand_on(holder, node)


def every_node(model: ir.Model) -> Iterator[ir.Node]:
    """The nodes of the graph, its subgraphs and the model's functions."""
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    """The graphs that a node's attributes hold (If, Loop, Scan)."""
    for attribute in node.attributes.values():
        if attribute.type.name == "GRAPH":
            yield attribute.as_graph()
        elif attribute.type.name == "GRAPHS":
            yield from attribute.as_graphs()
