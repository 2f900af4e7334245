"""What an error says about a node: its name, its op, the module and the source line it came from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from aot.errors import GraphError
from aot.scopes import scopes

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto

ONNX_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml"})


def load_structure(path: Path) -> ModelProto:
    """The graph without its external weights: cheap whatever their size. Raises GraphError for a damaged file."""
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

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
    """One line: "node 'mm' (MatMul), module 'encoder.layer.0', source model.py:12: x = self.f(x)"."""
    op = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    parts = [f"node '{node.name or node.output[0]}' ({op})"]
    metadata = {item.key: item.value for item in node.metadata_props}
    module = _module(metadata)
    if module:
        parts.append(f"module '{module}'")
    source = _source(metadata.get("pkg.torch.onnx.stack_trace", ""))
    if source:
        parts.append(f"source {source}")
    return ", ".join(parts)


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


def _module(metadata: dict[str, str]) -> str:
    """The innermost module path."""
    path = scopes(metadata)
    return path[-2] if len(path) > 1 else ""


def _source(trace: str) -> str:
    """The innermost frame outside torch itself, as `file:line: code`."""
    frames = re.findall(r'File "([^"]+)", line (\d+), in [^\n]*\n?([^\n]*)', trace)
    own = [frame for frame in frames if "/site-packages/torch/" not in frame[0]]
    if not own:
        return ""
    file, line, code = own[-1]
    return f"{file}:{line}: {code.strip()}" if code.strip() else f"{file}:{line}"


def first(found: Iterable[NodeProto]) -> str | None:
    """The description of the first node, None where there is none."""
    node = next(iter(found), None)
    return None if node is None else describe(node)
