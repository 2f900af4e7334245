"""What an error says about a node: its name, its op, the module and the source line it came from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from aot import origins
from aot.errors import GraphError
from aot.origins import Origin

if TYPE_CHECKING:
    import onnx_ir as ir
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto

ONNX_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml"})


def load_structure(path: Path) -> ModelProto:
    """The graph without its external weights: cheap whatever their size. Raises GraphError for a damaged file."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        return onnx.load(str(path), load_external_data=False)
    except (DecodeError, OSError) as error:
        raise GraphError("not an ONNX file that can be read", where=f"{path}: {error}") from error


def nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """Every node in order, those of subgraphs (If, Loop, Scan) after the node that holds them."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in inner_graphs(attribute):
                yield from nodes(inner)


def inner_graphs(attribute: AttributeProto) -> list[GraphProto]:
    """The subgraphs an attribute holds. Touching the field of one that holds none would bring it into being."""
    return [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def describe(node: NodeProto) -> str:
    """One line: `node 'mm' (MatMul), module 'encoder.layer.0', model.py:12: x = self.f(x)`."""
    op = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    return origins.where(node.name or node.output[0], op, origin(node))


def origin(node: NodeProto) -> Origin | None:
    """Where the node comes from; None where it does not say."""
    return origins.read({item.key: item.value for item in node.metadata_props})


def mentioned(graph: GraphProto, text: str) -> list[NodeProto]:
    """The nodes whose name stands in the text as a word of its own, longest names first.

    A fused region is written as `{ForeignNode[first...last]}`.
    """
    found_words = re.findall(r"[^\s\[\](){},:;+'\"]+", text)
    words = {part.rstrip(".") for word in found_words for part in (word, *word.split("..."))}
    found = [node for node in nodes(graph) if node.name and node.name in words]
    return sorted(found, key=lambda node: -len(node.name))


def by_name(graph: GraphProto, name: str) -> NodeProto | None:
    """The first node of that name."""
    return next((node for node in nodes(graph) if node.name == name), None)


def blamed(graph: GraphProto, text: str) -> str | None:
    """Where the nodes are that a vendor's message mentions, a region by its two ends; None where it names none."""
    names = {node.name for node in mentioned(graph, text)}
    found = [describe(node) for node in nodes(graph) if node.name in names]
    return f"from {found[0]} to {found[-1]}" if len(found) > 1 else next(iter(found), None)


def load(path: Path) -> ir.Model:
    """The graph with its weights left on disk until they are read. Raises GraphError for a damaged file."""
    import onnx_ir as ir
    from google.protobuf.message import DecodeError

    try:
        return ir.load(path)
    except (DecodeError, OSError) as error:
        raise GraphError("not an ONNX file that can be read", where=f"{path}: {error}") from error


def name_of(node: ir.Node) -> str:
    """The node's name; its first output's where it has none."""
    return node.name or next((str(value.name) for value in node.outputs), "")
