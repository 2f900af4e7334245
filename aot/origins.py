"""Where a node of a graph comes from: the module and the source line, kept in the node's metadata.

Two keys of `metadata_props` hold it: `aot.module` (`encoder.layer.0.attention`) and `aot.source`
(`models/bert.py:213 in forward: scores = ...`). They are written once, right after a graph came to be
(`aot.frontend.origins`, `aot.sources.onnx_file`), and every later edit hands them on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
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
        """`models/bert.py:213`; the name of an ONNX file alone; empty where nothing is known."""
        return f"{self.file}:{self.line}" if self.line else self.file

    def __str__(self) -> str:
        """One line: `encoder.layer.0.attention, models/bert.py:213: scores = ...`, or `node 'Conv_12' of x.onnx`."""
        if self.file and not self.line:
            return f"node '{self.module}' of {self.file}"
        place = f"{self.place}: {self.code}" if self.code else self.place
        return ", ".join(part for part in (self.module, place) if part)

    def metadata(self) -> dict[str, str]:
        """As `metadata_props` hold it; `read` is the inverse."""
        source = self.file and f"{self.file}:{self.line}"
        source += f" in {self.function}" if self.function else ""
        source += f": {self.code}" if self.code else ""
        return {MODULE: self.module, SOURCE: source}


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


def set(node: ir.Node, origin: Origin | None) -> None:
    """Give a node an origin in place of what it had; None changes nothing."""
    if origin is not None:
        node.metadata_props.update(origin.metadata())


def hand_on(source: ir.Node, to: ir.Node) -> None:
    """Give `to` the origin of `source`."""
    set(to, of(source))


def describe(node: ir.Node) -> str:
    """`encoder.layer.0.attention, models/bert.py:213: scores = ...`; the node's name and op where it has no origin."""
    return str(of(node) or "") or f"node '{node.name}' ({node.op_type})"


def where(name: str, op: str, origin: Origin | None) -> str:
    """What an error says of a node: `node 'mm' (MatMul), module 'encoder.layer.0', models/bert.py:12: x = self.f(x)`,
    or `node 'Conv_12' (Conv) of x.onnx`."""
    text = f"node '{name}' ({op})"
    if origin is None:
        return text
    if origin.file and not origin.line:
        return f"{text} of {origin.file}" if origin.module == name else f"{text}, made from {origin}"
    module = f"module '{origin.module}'" if origin.module else ""
    return ", ".join(part for part in (text, module, str(replace(origin, module=""))) if part)


def where_of(node: ir.Node) -> str:
    """`where`, of a node."""
    op = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    return where(node.name or next((str(v.name) for v in node.outputs), ""), op, of(node))


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


def inherit(model: ir.Model, before: Mapping[str, Origin], made: Iterable[ir.Node] | None = None) -> None:
    """Give every node that a rewrite made and left without origin that of what it replaced.

    `made` are the nodes that may lack one, by default all. `before` is `by_value` of the model before the rewrite. In
    this order: the origin of the node that computed a value of the same name, whose place the new node took, or of the
    name that its own is derived from (`NAME_...`); of the first node that reads it, which it was made for; of the first
    it reads; of the node whose subgraph holds it; else it belongs to the model itself, whose module path is empty.
    """
    fresh = [node for node in (every_node(model) if made is None else made) if of(node) is None]
    for node in fresh:
        set(node, _first(_by_name(str(value.name), before) for value in node.outputs))
    for node in reversed(fresh):
        if of(node) is None:
            set(node, _first(of(use.node) for value in node.outputs for use in value.uses()))
    for node in fresh:
        if of(node) is None:
            makers = (value.producer() for value in node.inputs if value is not None)
            set(node, _first(of(maker) for maker in makers if maker is not None))
    inside = any(of(node) is None and node.graph is not model.graph for node in fresh)
    for holder in every_node(model) if inside else ():
        for node in (node for graph in subgraphs(holder) for node in graph):
            if of(node) is None:
                hand_on(holder, node)
    for node in fresh:
        if of(node) is None:
            set(node, Origin())


def _by_name(name: str, known: Mapping[str, Origin]) -> Origin | None:
    while name and name not in known:
        name = name.rpartition("_")[0]
    return known.get(name)


def _first(found: Iterable[Origin | None]) -> Origin | None:
    return next((origin for origin in found if origin is not None), None)


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
