"""A graph as it stood at one moment: what a pass changed is the difference of two of them.

Only references are kept, so that a state costs a few microseconds a node. Values go by key: the name that they had at
that moment, behind the number of their graph where that is the body of an If, a Loop or a Scan. So a node that took
over the output of another, and its name, makes the same value, whatever object stands for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import onnx_ir as ir

if TYPE_CHECKING:
    import onnx


class NodeState(NamedTuple):
    """A node: (domain, op type, overload), its attributes, and the keys of what it reads and makes ("" for nothing)."""

    op: tuple[str, str, str]
    attributes: tuple[ir.Attr, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    graph: ir.Graph


@dataclass(frozen=True, slots=True)
class GraphState:
    """The main graph, or a body and the node that holds it: nodes, and the keys of inputs, outputs and initializers."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: tuple[str, ...]
    nodes: tuple[ir.Node, ...]
    holder: ir.Node | None


@dataclass(slots=True)
class State:
    """See the module's docstring.

    nodes: in the order of the graph, those of a body behind the node that holds it. values: by key. constants: what
    the initializers hold. maker: the node that makes a value. bodies: what the nodes hold that hold any. visible: the
    nodes that passes see; ops: those of the standard domain by op type, behind their places among all. opsets: the
    version of each domain. read: what each node reads, as values. new: the nodes that an earlier state has not.
    inferred: whether dtypes and shapes were asked for. tidy: whether what nothing reads was removed.
    """

    model: ir.Model
    opsets: dict[str, int]
    nodes: dict[ir.Node, NodeState] = field(default_factory=dict)
    graphs: dict[ir.Graph, GraphState] = field(default_factory=dict)
    values: dict[str, ir.Value] = field(default_factory=dict)
    constants: dict[str, ir.TensorProtocol | None] = field(default_factory=dict)
    maker: dict[str, ir.Node] = field(default_factory=dict)
    bodies: dict[ir.Node, tuple[ir.Graph, ...]] = field(default_factory=dict)
    visible: list[ir.Node] = field(default_factory=list)
    ops: dict[str, list[tuple[int, ir.Node]]] = field(default_factory=dict)
    read: dict[ir.Node, Sequence[ir.Value | None]] = field(default_factory=dict)
    new: list[ir.Node] = field(default_factory=list)
    inferred: bool = False
    tidy: bool = False

    @classmethod
    def of(cls, model: ir.Model, *, inferred: bool = False, before: State | None = None) -> State:
        """The state of the main graph and its bodies. before: an earlier one, of which what is the same is taken."""
        state = cls(model, dict(model.opset_imports), inferred=inferred)
        state._take(model.graph, None, "", {None: ""}, True, before or state)
        return state

    def _take(
        self,
        graph: ir.Graph,
        holder: ir.Node | None,
        place: str,
        keys: dict[ir.Value | None, str],
        visible: bool,
        before: State,
    ) -> None:
        values, taken, maker, ops, earlier = self.values, self.nodes, self.maker, self.ops, before.nodes
        read_by, seen = self.read, self.visible

        def key(value: ir.Value | None) -> str:
            known = keys.get(value)
            if known is not None or value is None:
                return known or ""
            name = value.name
            found = place + name if name else "" if name == "" else f"{place}#{id(value)}"
            if found in values:
                found = f"{found}#{id(value)}"
            keys[value] = found
            if found:
                values[found] = value
            return found

        inputs = tuple([key(value) for value in graph.inputs[:]])
        constants = tuple([key(value) for value in graph.initializers.data.values()])
        for name in constants:
            self.constants[name] = values[name].const_value
        nodes = tuple(graph)
        for node in nodes:
            domain, op = node.domain, node.op_type
            read_by[node] = given = node.inputs
            try:
                read = tuple([keys[value] for value in given])
            except KeyError:  # made further behind
                read = tuple([key(value) for value in given])
            made = []
            for value in node.outputs:
                own = value.name
                found = place + own if own else ""
                if not own or found in values or value in keys:
                    found = key(value)
                else:  # as `key` does, without the call: this is most of them
                    keys[value], values[found] = found, value
                maker[found] = node
                made.append(found)
            held = node.attributes.data
            attributes = tuple(held.values()) if held else ()
            is_called, outputs, was = (domain, op, node.overload), tuple(made), earlier.get(node)
            if was is not None and was == (is_called, attributes, read, outputs, graph):
                taken[node], inner = was, before.bodies.get(node)
            else:
                taken[node] = NodeState(is_called, attributes, read, outputs, graph)
                inner = tuple(inner_graphs(attributes)) if attributes else None
                if was is None:
                    self.new.append(node)
            if visible:
                seen.append(node)
                if not domain:
                    if op in ops:
                        ops[op].append((len(taken), node))
                    else:
                        ops[op] = [(len(taken), node)]
            if inner:
                self.bodies[node] = inner
                for body in inner:
                    self._take(body, node, _place(self.model, body), keys, visible and op in CONTROL, before)
        outputs = tuple([key(value) for value in graph.outputs[:]])
        self.graphs[graph] = GraphState(inputs, outputs, constants, nodes, holder)

    def changed(self, before: State) -> list[ir.Node]:
        """The nodes that were not there before, or are or read something else, in the order of the graph.

        A constant that was none is something else, under whatever name.
        """
        new = {key for key, tensor in self.constants.items() if before.constants.get(key) is not tensor}
        changed = [node for node, at in self.nodes.items() if (was := before.nodes.get(node)) is not at and was != at]
        if not new:
            return changed
        found = set(changed)
        return [node for node, at in self.nodes.items() if node in found or not new.isdisjoint(at.inputs)]

    def reads(self, node: ir.Node) -> list[str]:
        """The keys that a node needs from outside: what it reads, and what its bodies capture."""
        found = [key for key in self.nodes[node].inputs if key]
        for body in self.bodies.get(node, ()):
            graph = self.graphs[body]
            inside = set(graph.inputs)
            for inner in graph.nodes:
                found += [key for key in self.reads(inner) if key not in inside]
                inside.update(self.nodes[inner].outputs)
            found += [key for key in graph.outputs if key not in inside]
        return found


def _place(model: ir.Model, body: ir.Graph) -> str:
    """What the keys of a body begin with: a number of its own, the same in every state."""
    place: str | None = body.meta.get(_PLACE)
    if place is None:
        model.meta[_PLACE] = model.meta.get(_PLACE, 0) + 1
        body.meta[_PLACE] = place = f"{model.meta[_PLACE]}/"
    return place


_PLACE = "aot.graph"
_GRAPH, _GRAPHS = ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS


STATE = "aot.state"
"""Where a model (`meta`) keeps its state while a pass runs over it."""
CONTROL = frozenset(("If", "Loop", "Scan"))
"""The ops whose bodies may be rewritten. Others, such as those of FlexAttention, need not see what is around them."""


def walk(graph: ir.Graph, *, everywhere: bool = False) -> Iterator[ir.Node]:
    """The nodes, those of a body of `CONTROL` behind the node that holds it. everywhere: those of all bodies, as
    `graph.all_nodes()` has them; this is several times faster."""
    for node in graph:
        yield node
        if node.op_type not in CONTROL and not everywhere:
            continue
        for attribute in node.attributes.data.values():
            if attribute.type is _GRAPH or attribute.type is _GRAPHS:
                for body in bodies(attribute):
                    yield from walk(body, everywhere=everywhere)


def inner_graphs(attributes: Iterable[ir.Attr]) -> list[ir.Graph]:
    """The graphs that attributes hold."""
    return [
        body
        for attribute in attributes
        if attribute.type is _GRAPH or attribute.type is _GRAPHS
        for body in bodies(attribute)
    ]


def bodies(attribute: ir.Attr) -> tuple[ir.Graph, ...]:
    """The graphs that an attribute holds."""
    kind = attribute.type
    if kind is _GRAPH:
        return (attribute.as_graph(),)
    return tuple(attribute.as_graphs()) if kind is _GRAPHS else ()


def write_nodes(graph: onnx.GraphProto, state: State, nodes: Iterable[ir.Node]) -> None:
    """Append nodes to `graph` as they stood, keys as names.

    The initializers of bodies are not written: keys are unique, so that they can stand with those of `graph`.
    """
    for node in nodes:
        at = state.nodes[node]
        proto = graph.node.add()
        domain, proto.op_type, overload = at.op
        if domain:
            proto.domain = domain
        if overload:
            proto.overload = overload
        proto.input.extend(at.inputs)
        proto.output.extend(at.outputs)
        for attribute in at.attributes:
            put = proto.attribute.add()
            held = bodies(attribute)
            if not held:
                ir.serde.serialize_attribute_into(put, attribute)
                continue
            put.name, put.type = attribute.name, attribute.type.value
            for body in held:
                _write_body(put.g if attribute.type is _GRAPH else put.graphs.add(), state, body)


def _write_body(graph: onnx.GraphProto, state: State, body: ir.Graph) -> None:
    at = state.graphs[body]
    graph.name = body.name or "body"
    for key in at.inputs:
        write_value(graph.input.add(), key, state.values[key])
    write_nodes(graph, state, at.nodes)
    for key in at.outputs:
        write_value(graph.output.add(), key, state.values[key])


def write_value(
    proto: onnx.ValueInfoProto, key: str, value: ir.Value, unknown: Callable[[str | None], bool] = lambda name: not name
) -> None:
    """Say the dtype and shape of a value, as far as they are known; dims whose name is `unknown` are left open."""
    proto.name = key
    if not isinstance(value.type, ir.TensorType):
        if value.type is not None:
            ir.serde.serialize_type_into(proto.type, value.type)
        return
    tensor = proto.type.tensor_type
    tensor.elem_type = value.type.dtype.value
    if value.shape is not None:
        tensor.shape.SetInParent()
        for size in value.shape:
            dim = tensor.shape.dim.add()
            if isinstance(size, int):
                dim.dim_value = size
            elif not unknown(size.value):
                dim.dim_param = str(size.value)


def write_constant(proto: onnx.TensorProto, key: str, tensor: ir.TensorProtocol) -> None:
    """Write an initializer with its contents, wherever they are kept."""
    if tensor.dtype == ir.DataType.STRING:
        ir.serde.serialize_tensor_into(proto, tensor)
    else:
        proto.data_type = tensor.dtype.value
        proto.dims.extend(tensor.shape.numpy())
        proto.raw_data = tensor.tobytes()
    proto.name = key
