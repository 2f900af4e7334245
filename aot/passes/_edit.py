"""What passes share: asking about a value, and replacing a node without losing its name or its metadata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from aot.graph.constants import constant_of, initializer
from aot.graph.inference import made_up
from aot.graph.state import STATE, walk

Dim = int | str | None

EVERYTHING = 2**31 - 1
"""No dim is larger: a slice up to here takes all there is."""


def nodes(model: ir.Model, *ops: str) -> Iterator[ir.Node]:
    """Every node of the standard domain with one of those op types, subgraphs included, in graph order.

    They are those that were there when the pass began; nodes that it has removed meanwhile are passed over.
    """
    state = model.meta.get(STATE)
    if state is None:
        found = [node for node in walk(model.graph) if node.op_type in ops and node.domain == ""]
    elif len(ops) == 1:
        found = [node for _, node in state.ops.get(ops[0], ())]
    else:
        each = [one for op in dict.fromkeys(ops) for one in state.ops.get(op, ())]
        found = [node for _, node in sorted(each, key=_place)]
    for node in found:
        if node.graph is not None:
            yield node


def every_node(model: ir.Model) -> Iterator[ir.Node]:
    """As `nodes`, of any domain and op type."""
    state = model.meta.get(STATE)
    for node in list(walk(model.graph)) if state is None else state.visible:
        if node.graph is not None:
            yield node


def _place(found: tuple[int, ir.Node]) -> int:
    return found[0]


def made_by(value: ir.Value | None, *ops: str) -> ir.Node | None:
    """The node that computes `value`, if it is of the standard domain and of one of those op types."""
    node = value.producer() if value is not None else None
    return node if node is not None and node.domain == "" and node.op_type in ops else None


def opset(model: ir.Model) -> int:
    """The opset of the standard domain, 0 where none is said."""
    return model.opset_imports.get("", 0)


def attribute(node: ir.Node, name: str, default: Any = None) -> Any:
    """The plain value of an attribute, `default` where it is absent."""
    found = node.attributes.data.get(name)  # its own `get` raises and catches an error for what is absent
    return default if found is None else found.value


def tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """What a constant holds, None for anything computed or fed."""
    if value is None or value.is_graph_input():
        return None
    if value.const_value is not None:
        return value.const_value
    node = value.producer()
    return constant_of(node) if node is not None else None


def array(value: ir.Value | None) -> np.ndarray[Any, Any] | None:
    """The contents of a constant, None for anything computed or fed."""
    held = tensor(value)
    return None if held is None else held.numpy()


def scalar(value: ir.Value | None) -> float | None:
    """The number a one-element constant holds, None for anything else."""
    held = tensor(value)
    return float(held.numpy().reshape(())) if held is not None and held.size == 1 else None


def dims(value: ir.Value | None) -> tuple[Dim, ...] | None:
    """The shape: integers, names of symbolic dims, None for what is not known; None where the rank is not known.

    Placeholder names such as `?` tell nothing, so they count as not known.
    """
    if value is None or value.shape is None:
        return None
    return tuple([dim if isinstance(dim, int) else _told(dim.value) for dim in value.shape])


def _told(name: Dim) -> Dim:
    return name if isinstance(name, int) or (name and name[0] not in "?*") else None


def refine(value: ir.Value, equal: ir.Value) -> None:
    """Let `value` know what is known of a value that is equal: its type, and each dim that only has a made up name."""
    value.type = value.type or equal.type
    if value.is_graph_input() or equal.shape is None or value.shape is equal.shape:
        return
    if value.shape is None:
        value.shape = equal.shape
    elif len(value.shape) == len(equal.shape):
        pairs = zip(value.shape, equal.shape, strict=True)
        value.shape = ir.Shape([b if not isinstance(a, int) and made_up(a.value) else a for a, b in pairs])


def same(a: Dim, b: Dim) -> bool:
    """Whether two dims are known to be equal."""
    return a is not None and a == b


def broadcast(a: Sequence[Dim], b: Sequence[Dim]) -> tuple[Dim, ...] | None:
    """The shape two shapes broadcast to, None where that cannot be told."""
    rank = max(len(a), len(b))
    out: list[Dim] = []
    for x, y in zip((1,) * (rank - len(a)) + tuple(a), (1,) * (rank - len(b)) + tuple(b), strict=True):
        if x == 1 or same(x, y):
            out.append(y)
        elif y == 1:
            out.append(x)
        else:
            return None
    return tuple(out)


def only_user(value: ir.Value) -> ir.Node | None:
    """The one node that reads `value` (once), None where there are more or it is an output of the graph."""
    uses = tuple(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def constant(model: ir.Model, name: str, data: np.ndarray[Any, Any]) -> ir.Value:
    """A new initializer; its name is `name`, with a number where that is taken."""
    return initializer(model, name, ir.Tensor(data))


def as_attributes(values: Mapping[str, Any]) -> dict[str, ir.Attr]:
    """Attributes of these values; onnx_ir takes a hundred times as long to see that a list holds integers."""
    return {
        name: ir.AttrInt64s(name, value)
        if isinstance(value, list | tuple) and value and all([type(one) is int for one in value])
        else ir.convenience.convert_attribute(name, value)
        for name, value in values.items()
    }


def _node(
    op: str, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any] | None, name: str | None, like: ir.Node
) -> ir.Node:
    held = tuple(as_attributes(attributes).values()) if attributes else ()
    return ir.Node("", op, inputs, held, name=name, metadata_props=dict(like.metadata_props))


def replace(
    node: ir.Node,
    op: str,
    inputs: Sequence[ir.Value | None],
    attributes: Mapping[str, Any] | None = None,
    like: ir.Node | None = None,
) -> ir.Node:
    """Put a new node with one output in the place of `node` and its output.

    It takes over the name and the metadata (module path, source line) of `like`, by default of `node`.

    What only `node` read is left without a reader; the cleaning passes remove it.
    """
    graph = node.graph
    assert graph is not None
    assert len(node.outputs) == 1
    source = node if like is None else like
    new = _node(op, inputs, attributes, source.name, source)
    ir.convenience.replace_nodes_and_values(graph, node, [node], [new], node.outputs, new.outputs)
    return new


def before(
    node: ir.Node,
    op: str,
    inputs: Sequence[ir.Value | None],
    attributes: Mapping[str, Any] | None = None,
    like: ir.Node | None = None,
) -> ir.Value:
    """The output of a new node in front of `node`, with the name and metadata of `like`, by default of `node`."""
    source = node if like is None else like
    name = source.name if like is not None else f"{node.name}_{op}"
    made = _node(op, inputs, attributes, name, source)
    made.outputs[0].name = f"{node.outputs[0].name}_{op}"
    assert node.graph is not None
    node.graph.insert_before(node, made)
    return made.outputs[0]


def bypass(node: ir.Node, value: ir.Value) -> None:
    """Let every reader of `node`'s output read `value` instead, and remove `node`.

    An output of the graph keeps its name through an Identity.
    """
    graph = node.graph
    assert graph is not None
    assert len(node.outputs) == 1
    if node.outputs[0].is_graph_output():
        replace(node, "Identity", [value])
        return
    ir.convenience.replace_all_uses_with(node.outputs[0], value)
    graph.remove(node, safe=True)
