"""onnx's own inference of dtypes and shapes, in C++, on a small model of the nodes in question.

Large weights stay behind. The nodes of the branches of an If stand beside it, where they know the contents of what is
around them; what is left of it chooses between two results.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from aot.graph.constants import constant_of
from aot.graph.state import State, inner_graphs, write_constant, write_nodes, write_value

if TYPE_CHECKING:
    import onnx

SMALL = 64
"""Elements up to which a constant may be a shape, axes or the like, which sizes follow from."""
_LONG = 1 << 16
"""Elements beyond which the contents of a vector are not followed: onnx keeps a number for each, of any dtype."""
_COUNTER = "aot.unknown_dims"

log = logging.getLogger(__name__)


def held(state: State, key: str) -> ir.TensorProtocol | None:
    """What an initializer or a Constant node holds."""
    tensor = state.constants.get(key)
    if tensor is None and (maker := state.maker.get(key)) is not None:
        return constant_of(maker)
    return tensor


def reads(state: State, node: ir.Node) -> Sequence[str]:
    """The keys that a node needs from outside in the small model; "" for an input that it leaves out."""
    if node not in state.bodies:
        return state.nodes[node].inputs
    if not _is_if(node):
        return state.reads(node)
    ends = [key for body in state.bodies[node] for key in state.graphs[body].outputs]
    return [*state.nodes[node].inputs, *ends]


def in_order(state: State, wanted: set[ir.Node]) -> list[ir.Node]:
    """`wanted` in the order in which the nodes need each other; of what is part of another only the other."""
    if len(state.graphs) == 1:
        return [node for node in state.nodes if node in wanted]
    found: list[ir.Node] = []

    def visit(graph: ir.Graph) -> None:
        for node in state.graphs[graph].nodes:
            whole = node in wanted and not _is_if(node)
            if node in state.bodies and not whole:
                for body in state.bodies[node]:
                    visit(body)
            if node in wanted:
                found.append(node)

    visit(state.model.graph)
    return found


def _is_if(node: ir.Node) -> bool:
    return node.op_type == "If" and not node.domain


def inferred(
    state: State, nodes: Sequence[ir.Node], *, stated: bool = True, taken: Iterable[str] = (), contents: bool = True
) -> onnx.GraphProto:
    """The small model's graph, with what onnx infers of it from what it reads, and from what is known of the rest where
    it is `stated`.

    nodes: `in_order`. taken: names that none of the dims gets that it names. contents: follow those of vectors, whose
    length is left open where it is long.
    """
    import onnx

    def write(proto: onnx.ValueInfoProto, key: str, *unknown: Callable[[str | None], bool]) -> None:
        write_value(proto, key, state.values[key], *unknown)
        if contents and is_long(state.values[key]):
            proto.type.tensor_type.shape.dim[0].Clear()

    model = onnx.ModelProto(ir_version=max(state.model.ir_version or 0, 10))
    for domain, version in state.model.opset_imports.items():
        model.opset_import.add(domain=domain, version=version)
    for function in state.model.functions.values():
        model.functions.append(ir.serde.serialize_function(function))
    model.graph.name = "part"
    given: set[str] = {""}
    for node in nodes:
        for key in reads(state, node):
            if key in given:
                continue
            given.add(key)
            tensor, value = held(state, key), state.values[key]
            if tensor is not None and tensor.size <= SMALL and not value.is_graph_input():
                write_constant(model.graph.initializer.add(), key, tensor)
            elif value.type is not None:
                write(model.graph.input.add(), key)
        if node.op_type == "Constant" and not node.domain:
            continue  # its contents are given where they are read
        made = state.nodes[node].outputs
        given.update(made)
        for key in made:
            if key and state.values[key].type is not None and (stated or node.domain):
                write(model.graph.value_info.add(), key, made_up)
        if _is_if(node):
            _write_choice(model.graph, state, node)
        else:
            write_nodes(model.graph, state, (node,))
    # onnx makes up names that no dim of the model has.
    apart = max(given, key=len) + "_"  # not "": onnx before 1.23 takes that for every input left out
    names = onnx.helper.make_tensor_value_info(apart, onnx.TensorProto.BOOL, sorted(taken))
    model.graph.input.append(names)
    try:
        found = onnx.shape_inference.infer_shapes(model, check_type=False, strict_mode=False, data_prop=contents)
        found.graph.input.remove(names)
        return found.graph
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        log.debug("no shapes inferred: %s", error)
        return onnx.GraphProto()


def _write_choice(graph: onnx.GraphProto, state: State, node: ir.Node) -> None:
    """An If whose branches only hand out what is computed beside it."""
    at = state.nodes[node]
    proto = graph.node.add(op_type="If", input=at.inputs, output=at.outputs)
    for attribute in at.attributes:
        for body in inner_graphs((attribute,)):
            put = proto.attribute.add(name=attribute.name, type=attribute.type.value)
            put.g.name = attribute.name
            for number, key in enumerate(state.graphs[body].outputs):
                put.g.node.add(op_type="Identity", input=[key], output=[f"{key}/{number}"])
                put.g.output.add(name=f"{key}/{number}")


def infos(graph: onnx.GraphProto, *, inner: bool) -> Iterator[onnx.ValueInfoProto]:
    """What is known of the values of a graph; inner: and of the graphs in it."""
    yield from graph.value_info
    yield from graph.input
    yield from graph.output
    for node in graph.node if inner else ():
        for attribute in node.attribute:
            for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from infos(body, inner=True)


def holds_whole(state: State, nodes: Iterable[ir.Node]) -> bool:
    """Whether the small model of `nodes` has any whose bodies do not stand beside it."""
    return any([node in state.bodies and not _is_if(node) for node in nodes])


def is_long(value: ir.Value) -> bool:
    """Whether a vector is too long for its contents to be followed."""
    shape = value.shape
    if shape is None or len(shape) != 1:
        return False
    return isinstance(shape[0], int) and shape[0] > _LONG


def made_up(name: str | None) -> bool:
    """Whether a symbolic dim has no name, or one that only says that nothing is known."""
    return name is None or name.startswith("unk__")


class Symbols:
    """Names of dims: those of the values in question stay; those that an inference made up become unlike all others."""

    def __init__(self, state: State, keys: Iterable[str]) -> None:
        self._state = state
        self._new: dict[str, str] = {}
        shapes = [shape for key in keys if (shape := state.values[key].shape) is not None]
        self.old = {size.value for shape in shapes for size in shape if not isinstance(size, int) and size.value}

    def known(self, name: str) -> bool:
        """Whether one of the values has a dim of this name."""
        return name in self.old

    def __call__(self, name: str) -> str:
        """The name in the graph."""
        if name in self.old:
            return name
        if name not in self._new:
            self._new[name] = new_dim(self._state)
        return self._new[name]


def new_dim(state: State) -> str:
    """A made-up name that no dim of the model has. state: its present one, or one of which it was made since."""
    model = state.model
    if _COUNTER not in model.meta:
        numbers = [name.removeprefix("unk__") for value in state.values.values() for name in _names(value)]
        model.meta[_COUNTER] = 1 + max([int(number) for number in numbers if number.isdecimal()], default=-1)
    model.meta[_COUNTER] += 1
    return f"unk__{model.meta[_COUNTER] - 1}"


def _names(value: ir.Value) -> Iterator[str]:
    for size in () if value.shape is None else value.shape.dims:
        if not isinstance(size, int) and size.value is not None:
            yield size.value


def take(value: ir.Value, proto: onnx.TypeProto, names: Symbols) -> bool:
    """Add to `value` what is known of it now; says whether that is more than before."""
    if not proto.HasField("tensor_type"):
        if value.type is None and proto.WhichOneof("value") is not None:
            value.type = ir.serde.deserialize_type_proto_for_type(proto)
            return True
        return False
    tensor, more = proto.tensor_type, False
    if value.type is None and tensor.elem_type:
        value.type, more = ir.TensorType(ir.DataType(tensor.elem_type)), True
    if not tensor.HasField("shape"):
        return more
    found, shape = tensor.shape.dim, value.shape
    if shape is None:
        value.shape = ir.Shape([_size(None, dim, names) for dim in found])
        return True
    old = [size if isinstance(size, int) else size.value for size in shape]
    if len(old) != len(found):
        return more
    new = [
        size if isinstance(size, int) or not made_up(size) else _size(size, dim, names)
        for size, dim in zip(old, found, strict=True)
    ]
    if new != old:
        value.shape, more = ir.Shape(new), True
    return more


def _size(old: str | None, dim: onnx.TensorShapeProto.Dimension, names: Symbols) -> int | str | None:
    """What is known now of a dim that had no name, or one that was made up."""
    if dim.HasField("dim_value"):
        return dim.dim_value
    if not dim.dim_param or (old is not None and not names.known(dim.dim_param)):
        return old
    return names(dim.dim_param)
