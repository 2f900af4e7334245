"""What is there more than once: initializers of the same bytes, nodes that compute the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.graph.state import CONTROL, STATE, State
from aot.passes._compute import RANDOM
from aot.passes._edit import refine, replace

_COMMUTATIVE = frozenset(("Add", "Mul", "And", "Or", "Xor", "Equal", "Max", "Min", "Sum", "Mean"))
_SAMPLE = 16
_SAMPLED = "aot.sample"
_COMPARED = "aot.compared"
"""Where a model (`meta`) keeps which tensors, by the name of the initializer, were compared with each other."""
_CHUNK = 1 << 24
_Known = defaultdict[Hashable, list[ir.Node]]
"""Nodes by `_alike`."""


@graph_pass(
    in_one_sweep=True,
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,4] x) => (float[B,4] y) { a = Exp(x)  b = Exp(x)  y = Add(a, b) }
    """,
)
def share_subexpressions(model: ir.Model, skip: Skip) -> int:
    """Two nodes of the same op, attributes and inputs are one node, also where one is in a subgraph and the other
    around it; so are two constants of the same type, shape and bytes.

    What draws random numbers is not the same twice; ops of other domains are left alone, since they may.
    """
    return _share_constants(model) + _share_nodes(model.meta[STATE], model.graph, [])


def _share_constants(model: ir.Model) -> int:
    """Bytes are compared only where types, shapes and a few elements agree, so that large weights stay unread.

    What a pass makes of weights when the graph is written is not looked at: it would be made for that alone.
    """
    held = {name: id(value.const_value) for name, value in model.graph.initializers.data.items()}
    if held.items() <= model.meta.get(_COMPARED, {}).items():
        return 0
    model.meta[_COMPARED] = held
    alike: defaultdict[Hashable, list[ir.Value]] = defaultdict(list)
    for value in model.graph.initializers.data.values():
        tensor = value.const_value
        if tensor is None or isinstance(tensor, ir.LazyTensor) or tensor.dtype == ir.DataType.STRING:
            continue
        if not value.is_graph_input():
            alike[tensor.dtype, *(value.shape or tensor.shape).dims].append(value)
    changed = 0
    for values in alike.values():
        if len(values) == 1:
            continue
        sampled: defaultdict[bytes, list[ir.Value]] = defaultdict(list)
        packed = all(map(_is_packed, values))
        for value in values:
            known = sampled[b"" if packed else _sample(value)]
            first = next((one for one in known if (_same_message if packed else _same_array)(one, value)), None)
            if first is None or value.is_graph_output():
                known.append(value)
                continue
            value.replace_all_uses_with(first)
            model.graph.initializers.pop(str(value.name))
            changed += 1
    return changed


def _array(value: ir.Value) -> np.ndarray[Any, Any]:
    assert value.const_value is not None
    return value.const_value.numpy()


def _sample(value: ir.Value) -> bytes:
    """A few elements; all, of a small constant. They are kept, since a weight inside the file is copied to be read."""
    tensor = value.const_value
    assert tensor is not None
    found: bytes | None = tensor.meta.get(_SAMPLED)
    if found is None:
        array = tensor.numpy()
        if array.size > _SAMPLE:
            places = np.linspace(0, array.size - 1, _SAMPLE).astype(np.int64)
            array = array[np.unravel_index(places, array.shape)]
        found = tensor.meta[_SAMPLED] = array.tobytes()
    return found


def _is_packed(value: ir.Value) -> bool:
    """Whether a constant lies in the message of the file, from which each reading copies it."""
    tensor = value.const_value
    return isinstance(tensor, ir.serde.TensorProtoTensor) and tensor.raw.HasField("raw_data")


def _same_message(a: ir.Value, b: ir.Value) -> bool:
    """Compared where they lie, up to the first difference."""
    first, second = a.const_value.raw, b.const_value.raw  # type: ignore[union-attr]
    name, second.name = second.name, first.name
    try:
        return bool(first == second)
    finally:
        second.name = name


def _same_array(a: ir.Value, b: ir.Value) -> bool:
    one, two = _array(a), _array(b)
    return one.shape == two.shape and _same_bytes(one, two)


def _same_bytes(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    if a.size <= _SAMPLE:
        return True
    if a.nbytes <= _CHUNK or a.ndim == 0:
        return a.tobytes() == b.tobytes()
    return all(_same_bytes(x, y) for x, y in zip(a, b, strict=True))


def _share_nodes(state: State, graph: ir.Graph, around: Sequence[_Known]) -> int:
    known: _Known = defaultdict(list)
    changed = 0
    for node in state.graphs[graph].nodes:
        inner = state.bodies.get(node, ())
        for one in inner if node.op_type in CONTROL else ():
            changed += _share_nodes(state, one, [*around, known])
        if inner or node.domain or node.op_type in RANDOM or not node.inputs:
            continue
        alike = _alike(node)
        scopes = [found for scope in (known, *around) if (found := scope.get(alike))]
        form = _form(node) if scopes else ()
        first = next((one for found in scopes for one in found if _form(one) == form), None)
        if first is None:
            known[alike].append(node)
        elif _merge(node, first):
            changed += 1
    return changed


def _alike(node: ir.Node) -> Hashable:
    """The op and what it reads; the rest is looked at where these are the same."""
    return node.op_type, tuple(sorted(map(id, node.inputs))) if node.op_type in _COMMUTATIVE else node.inputs


def _form(node: ir.Node) -> Hashable:
    """The attributes, and which of the outputs there are."""
    held = node.attributes.data
    attributes = tuple([(name, _hashable(held[name])) for name in sorted(held)])
    return attributes, tuple([bool(value.name) for value in node.outputs])


def _hashable(attribute: ir.Attr) -> Hashable:
    value = attribute.value
    if isinstance(value, list | tuple | np.ndarray):
        value = tuple(value)
    elif attribute.type == ir.AttributeType.TENSOR:
        value = (value.dtype, tuple(value.shape.numpy()), value.tobytes())
    return attribute.type, value


def _merge(node: ir.Node, first: ir.Node) -> bool:
    """Let what reads `node` read `first`; an output of a graph keeps its name."""
    graph = node.graph
    assert graph is not None
    named = [value for value in node.outputs if value.is_graph_output()]
    if named and len(node.outputs) > 1:
        return False
    for value, kept in zip(node.outputs, first.outputs, strict=True):
        refine(kept, value)
        if named:
            replace(node, "Identity", [kept])
            return True
        value.replace_all_uses_with(kept)
    graph.remove(node, safe=True)
    return True
