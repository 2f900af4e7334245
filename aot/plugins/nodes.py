"""The nodes of plugins in a final graph, and what their kernels are compiled from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aot import origins
from aot.errors import PluginError
from aot.plugins.header import Header

if TYPE_CHECKING:
    import onnx_ir as ir

Shape = tuple[int | None, ...]
DTYPES = {
    "FLOAT": "float32", "FLOAT16": "float16", "BFLOAT16": "bfloat16", "FLOAT8E4M3FN": "float8_e4m3fn", "INT8": "int8",
    "UINT8": "uint8", "INT32": "int32", "INT64": "int64", "BOOL": "bool",
}  # fmt: skip
"""A dtype by ONNX's name for it -> as a plugin writes it."""


@dataclass(frozen=True)
class Call:
    """What a kernel is compiled for. shapes: of the inputs by name, None for a size that varies."""

    attributes: Mapping[str, Any]
    dtypes: tuple[str, ...]
    shapes: Mapping[str, Shape]

    @property
    def key(self) -> tuple[Any, ...]:
        """The same for two nodes that one kernel serves."""
        return tuple(self.attributes.items()), self.dtypes, tuple(self.shapes.items())


@dataclass(frozen=True)
class PluginNode:
    """A node of a plugin. where: the node and its origin, for messages. call: None where `why` says what is missing."""

    name: str
    op: str
    where: str
    call: Call | None
    why: str = ""


def plugin_nodes(model: ir.Model, header: Header) -> list[PluginNode]:
    """The nodes of a plugin, in the graph's order."""
    names = Counter(node.name for node in model.graph.all_nodes())
    found = []
    for node in model.graph.all_nodes():
        if (node.domain, node.op_type) != (header.domain, header.name):
            continue
        name, where = node.name or "", origins.where_of(node)
        try:
            if not name or names[name] > 1:
                raise PluginError("the node has no name of its own")
            found.append(PluginNode(name, node.op_type, where, call_of(header, node)))
        except PluginError as error:
            found.append(PluginNode(name, node.op_type, where, None, error.what))
    return found


def call_of(header: Header, node: ir.Node) -> Call:
    """What the kernel of a node is compiled for. Raises PluginError for what the graph does not say, and for what the
    plugin does not take."""
    _check_form(header, node)
    shapes: dict[str, Shape] = {}
    dtypes = []
    for declared, value in zip(header.schema.inputs, node.inputs, strict=True):
        if value is None or value.shape is None or value.dtype is None:
            raise PluginError(f"the graph does not say the shape of '{declared.name}'")
        if value.dtype.name not in DTYPES:
            raise PluginError(f"'{declared.name}' is {value.dtype.name.lower()}")
        dtypes.append(DTYPES[value.dtype.name])
        shapes[declared.name] = tuple(size if isinstance(size, int) else None for size in value.shape)
    header.schema.chosen(dtypes)
    attributes = {
        one.name: _value(one.kind, node.attributes[one.name]) if one.name in node.attributes else one.default
        for one in header.schema.attributes
    }
    return Call(attributes, tuple(dtypes), _known(header, shapes))


def _check_form(header: Header, node: ir.Node) -> None:
    """Raises PluginError where SCHEMA has other inputs, outputs or attributes."""
    import onnx_ir as ir

    schema = header.schema
    for what, count, declared in (
        ("inputs", len(node.inputs), schema.inputs),
        ("outputs", len(node.outputs), schema.outputs),
    ):
        if count != len(declared):
            names = ", ".join(one.name for one in declared)
            raise PluginError(f"it has {count} {what}, and SCHEMA {len(declared)}: {names}")
    kinds = {one.name: one.kind for one in schema.attributes}
    wanted = {"str": ir.AttributeType.STRING, "float": ir.AttributeType.FLOAT, "int[]": ir.AttributeType.INTS}
    for name, attribute in node.attributes.items():
        if name not in kinds:
            raise PluginError(f"it has an attribute '{name}', and SCHEMA {', '.join(kinds) or 'none'}")
        if attribute.type != wanted.get(kinds[name], ir.AttributeType.INT):
            raise PluginError(f"its attribute '{name}' is {attribute.type.name}, and SCHEMA says {kinds[name]}")
    for one in schema.attributes:
        if one.default is None and one.name not in node.attributes:
            raise PluginError(f"it lacks the attribute '{one.name}'")


def _value(kind: str, attribute: ir.Attr) -> Any:
    if kind == "str":
        return attribute.as_string()
    if kind == "int[]":
        return tuple(attribute.as_ints())
    return attribute.as_float() if kind == "float" else {"int": int, "bool": bool}[kind](attribute.as_int())


def _known(header: Header, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """The shapes, with what a size is known to be in one place put wherever its name stands."""
    keys = {name: header.keys(name, len(shape)) for name, shape in shapes.items()}
    found: dict[Any, int] = {}
    for name, shape in shapes.items():
        found.update({key: size for key, size in zip(keys[name], shape, strict=True) if size is not None})
    return {name: tuple(key if isinstance(key, int) else found.get(key) for key in keys[name]) for name in shapes}
