"""The dtypes and shapes of a graph: all of them once, and after a rewrite those of what is new.

onnx's own inference does the work, in C++, on a small model of the nodes in question: large weights stay behind, and
what computes shapes comes along, so that the contents of shape tensors are followed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from aot.graph_state import State, constant_of, inner_graphs, write_constant, write_nodes, write_value

if TYPE_CHECKING:
    import onnx

_SMALL = 64
"""Elements up to which a constant may be a shape, axes or the like, which sizes follow from."""
_LONG = 1 << 16
"""Elements beyond which the contents of a vector are not followed: onnx keeps a number for each, of any dtype."""
_COUNTER = "aot.unknown_dims"
_ASKED = "aot.asked"
_INTEGERS = (ir.DataType.INT64, ir.DataType.INT32)

log = logging.getLogger(__name__)


def infer_shapes(model: ir.Model) -> None:
    """Complete the dtype and shape of every value that lacks one, following the contents of shape tensors.

    What is known stays, symbolic dims keep their names. A dim that nothing names gets a name of its own, `unk__N`; it
    is asked for again each time, since more may be known by then.
    """
    complete(State.of(model))


def complete(state: State, changed: Iterable[ir.Node] | None = None) -> bool:
    """`infer_shapes` for all nodes; where only some have `changed` since the last time, for what follows from them.

    Returns whether that told anything new.
    """
    for key, tensor in state.constants.items():
        _learn(state.values[key], tensor)
    held = _Held(state)
    if changed is None:
        return bool(_ask(state, state.nodes, held))
    touched = {one for node in changed for one in (node, *_holders(state, node))}
    better = _ask(state, _behind(state, touched, _holds_integers), held)
    if better:
        readers = {node for node, at in state.nodes.items() if not better.isdisjoint(at.inputs)}
        readers |= {at.holder for at in state.graphs.values() if at.holder and not better.isdisjoint(at.outputs)}
        _ask(state, _behind(state, readers, _tells_more), held, again=True)
    return bool(better)


def _behind(state: State, changed: set[ir.Node], better: Callable[[ir.Value], bool]) -> Iterator[ir.Node]:
    """`changed`, and the nodes behind them that read what may be `better` known now."""
    keys: set[str] = set()
    for node, at in state.nodes.items():
        if node in changed or (keys and not keys.isdisjoint(at.inputs)):
            yield node
            if any(map(better, node.outputs)):
                keys.update(at.outputs)


def _holds_integers(value: ir.Value) -> bool:
    """Whether a value has contents from which sizes may follow."""
    return value.dtype in _INTEGERS and _may_be_a_shape(value)


def _tells_more(value: ir.Value) -> bool:
    return _lacks(value) or _holds_integers(value)


def _ask(state: State, nodes: Iterable[ir.Node], held: _Held, *, again: bool = False) -> set[str]:
    """Infer what is not known of the results of `nodes`; returns the keys of what is known better now.

    Where nothing of what a node reads has changed since it was asked last it is not asked, unless `again`.
    """
    asked, wanted = [], set[ir.Node]()
    for node in nodes:
        if not any(map(_lacks, node.outputs)):
            continue
        if _is_constant(node):
            _learn(node.outputs[0], held(state.nodes[node].outputs[0]))
        elif again or _is_new(node):
            asked.append(node)
            wanted.add(node)
    if not wanted:
        return set()
    better: set[str] = set()
    part = _with_shape_arithmetic(state, wanted)
    keys = {key for node in part for key in (*state.reads(node), *state.nodes[node].outputs) if key}
    # Where a long vector occurs, what does not follow from contents is told first, while its length can be said.
    for contents in (False, True) if any(_is_long(state.values[key]) for key in keys) else (True,):
        names = _Symbols(state, keys if len(state.graphs) == 1 else state.values)
        found = _inferred(state, part, held, taken=names.old, contents=contents).graph
        for graph in _graphs(found) if len(state.graphs) > 1 else (found,):
            for info in (*graph.value_info, *graph.input, *graph.output):
                value = state.values[info.name]
                if _lacks(value) and _take(value, info.type, names):
                    better.add(info.name)
    for node in asked:
        node.meta[_ASKED] = _question(node)
    return better


def _is_new(node: ir.Node) -> bool:
    question = _question(node)
    return question is None or node.meta.get(_ASKED) != question


def _question(node: ir.Node) -> tuple[object, ...] | None:
    """All that the shapes of a node's results follow from; None where contents that are computed may be part of it."""
    known: list[object] = [tuple(node.attributes.data.values())]
    read = [value for value in node.inputs if value is not None]
    for body in inner_graphs(node.attributes.data.values()):
        read += [*body.inputs, *body.outputs]
    for value in read:
        if value.const_value is None and _holds_integers(value):
            return None
        known.append((value.const_value, value.type, value.shape.dims if value.shape is not None else None))
    return tuple(known)


def forget_wrong_shapes(model: ir.Model) -> bool:
    """Drop all shapes that a file states for inner values and outputs where one of them cannot be; says whether.

    Exporters write the sizes of their example, though the inputs have dims that vary.
    """
    state = State.of(model)
    given = {str(size.value) for value in model.graph.inputs for size in value.shape or () if not isinstance(size, int)}
    nodes = state.graphs[model.graph].nodes
    wrong = False
    for graph in _graphs(_inferred(state, nodes, _Held(state), stated=False, taken=given).graph):
        for info in graph.value_info:
            value, found = state.values[info.name], info.type.tensor_type.shape.dim
            if value.shape is None or not info.type.tensor_type.HasField("shape"):
                continue
            wrong |= len(value.shape) != len(found) or any(
                isinstance(old, int) and (old != new.dim_value if new.HasField("dim_value") else new.dim_param in given)
                for old, new in zip(value.shape, found, strict=False)
            )
    if wrong:
        for node in state.nodes:
            for value in node.outputs:
                value.shape = None
    return wrong


def _lacks(value: ir.Value) -> bool:
    shape = value.shape
    if shape is None or value.type is None:
        return value.name != ""
    return any(not isinstance(size, int) and made_up(size.value) for size in shape)


def made_up(name: str | None) -> bool:
    """Whether a symbolic dim has no name, or one that only says that nothing is known."""
    return name is None or name.startswith("unk__")


def _is_constant(node: ir.Node) -> bool:
    return node.op_type == "Constant" and node.domain == ""


class _Held:
    """What initializers and Constant nodes hold, by key."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._known: dict[str, ir.TensorProtocol | None] = dict(state.constants)

    def __call__(self, key: str) -> ir.TensorProtocol | None:
        if key not in self._known:
            maker = self._state.maker.get(key)
            self._known[key] = constant_of(maker) if maker is not None else None
        return self._known[key]


def _learn(value: ir.Value, tensor: ir.TensorProtocol | None) -> None:
    if tensor is not None and (value.shape is None or value.type is None):
        value.shape, value.type = ir.Shape(tensor.shape.numpy()), ir.TensorType(tensor.dtype)


def _with_shape_arithmetic(state: State, wanted: set[ir.Node]) -> list[ir.Node]:
    """`wanted` and what computes the integers that it reads, from the Shape nodes on, in the order of the graph."""
    todo, found = list(wanted), set(wanted)
    while todo:
        node = todo.pop()
        if node.op_type in ("Shape", "Size"):
            continue
        for key in state.reads(node):
            maker, value = state.maker.get(key), state.values[key]
            if maker in found or maker is None or value.dtype not in _INTEGERS or not _may_be_a_shape(value):
                continue
            found.add(maker)
            todo.append(maker)
    return [node for node in state.nodes if node in found and found.isdisjoint(_holders(state, node))]


def _holders(state: State, node: ir.Node) -> Iterator[ir.Node]:
    """The nodes whose bodies hold `node`, the innermost first."""
    while (holder := state.graphs[state.nodes[node].graph].holder) is not None:
        yield holder
        node = holder


def _may_be_a_shape(value: ir.Value) -> bool:
    return value.shape is None or len(value.shape) <= 1


def _is_long(value: ir.Value) -> bool:
    shape = value.shape
    return shape is not None and len(shape) == 1 and isinstance(shape[0], int) and shape[0] > _LONG


def _inferred(
    state: State,
    nodes: Sequence[ir.Node],
    held: _Held,
    *,
    stated: bool = True,
    taken: Iterable[str] = (),
    contents: bool = True,
) -> onnx.ModelProto:
    """The small model of `nodes`, with what onnx infers of it from what it reads, and from what is known of the rest
    where it is `stated`. Dims that it names get none of the names that are `taken`. contents: follow those of vectors,
    whose length is left open where it is long."""
    import onnx

    def write(proto: onnx.ValueInfoProto, key: str, *unknown: Callable[[str | None], bool]) -> None:
        write_value(proto, key, state.values[key], *unknown)
        if contents and _is_long(state.values[key]):
            proto.type.tensor_type.shape.dim[0].Clear()

    model = onnx.ModelProto(ir_version=max(state.model.ir_version or 0, 10))
    for domain, version in state.model.opset_imports.items():
        model.opset_import.add(domain=domain, version=version)
    for function in state.model.functions.values():
        model.functions.append(ir.serde.serialize_function(function))
    model.graph.name = "part"
    given: set[str] = {""}
    inner = []
    for node in nodes:
        for key in state.reads(node):
            if key in given:
                continue
            given.add(key)
            tensor, value = held(key), state.values[key]
            if tensor is not None and tensor.size <= _SMALL and not value.is_graph_input():
                write_constant(model.graph.initializer.add(), key, tensor)
            elif value.type is not None:
                write(model.graph.input.add(), key)
        if _is_constant(node):
            continue  # its contents are given where they are read
        inner.append(node)
        made = state.nodes[node].outputs
        given.update(made)
        for key in made:
            if key and state.values[key].type is not None and (stated or node.domain):
                write(model.graph.value_info.add(), key, made_up)
    write_nodes(model.graph, state, inner)
    # onnx makes up names that no dim of the model has.
    apart = max(given, key=len) + "_"  # not "": onnx before 1.23 takes that for every input left out
    names = onnx.helper.make_tensor_value_info(apart, onnx.TensorProto.BOOL, sorted(taken))
    model.graph.input.append(names)
    try:
        found = onnx.shape_inference.infer_shapes(model, check_type=False, strict_mode=False, data_prop=contents)
        found.graph.input.remove(names)
        return found
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        log.debug("no shapes inferred: %s", error)
        return onnx.ModelProto()


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _graphs(body)


class _Symbols:
    """Names of dims: those of the values in question stay; those that an inference made up become unlike all others."""

    def __init__(self, state: State, keys: Iterable[str]) -> None:
        self._meta = state.model.meta
        self._new: dict[str, str] = {}
        self.old = _names(state, keys)
        if _COUNTER not in self._meta:
            numbers = [name.removeprefix("unk__") for name in _names(state, state.values)]
            self._meta[_COUNTER] = 1 + max([int(number) for number in numbers if number.isdecimal()], default=-1)

    def known(self, name: str) -> bool:
        """Whether one of the values has a dim of this name."""
        return name in self.old

    def __call__(self, name: str) -> str:
        """The name in the graph."""
        if name in self.old:
            return name
        if name not in self._new:
            self._new[name] = f"unk__{self._meta[_COUNTER]}"
            self._meta[_COUNTER] += 1
        return self._new[name]


def _names(state: State, keys: Iterable[str]) -> set[str]:
    return {
        str(size.value)
        for key in keys
        for size in state.values[key].shape or ()
        if not isinstance(size, int) and size.value is not None
    }


def _take(value: ir.Value, proto: onnx.TypeProto, names: _Symbols) -> bool:
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
    shape = value.shape
    old = None if shape is None else [size if isinstance(size, int) else size.value for size in shape]
    found = tensor.shape.dim
    if old is not None and len(old) != len(found):
        return more
    new = [_size(size, dim, names) for size, dim in zip(old or [None] * len(found), found, strict=True)]
    if new != old:
        value.shape, more = ir.Shape(new), True
    return more


def _size(old: int | str | None, dim: onnx.TensorShapeProto.Dimension, names: _Symbols) -> int | str | None:
    """What is known of a dim: what was, where it was something."""
    if isinstance(old, int) or not made_up(old):
        return old
    if dim.HasField("dim_value"):
        return dim.dim_value
    if not dim.dim_param or (old is not None and not names.known(dim.dim_param)):
        return old
    return names(dim.dim_param)
