"""The dtypes and shapes of a graph: all of them once, and after a rewrite those of what is new.

`aot.graph.inference` infers; here it is decided what is worth asking for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import onnx_ir as ir

from aot.graph.constants import constant_of
from aot.graph.inference import SMALL, Symbols, holds_whole, in_order, inferred, infos, is_long, made_up, reads, take
from aot.graph.state import State, inner_graphs

_ASKED = "aot.asked"
_INTEGERS = (ir.DataType.INT64, ir.DataType.INT32)
_BY_NUMBERS = frozenset(("Range", "Resize", "Upsample"))
"""Ops whose sizes follow from floats."""
_ACTIVATIONS = ("Clip", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Relu", "Sigmoid", "Softmax")
ALIKE = frozenset((*_ACTIVATIONS, "Abs", "Erf", "Exp", "Identity", "Log", "Neg", "Reciprocal", "Sqrt", "Tanh"))
"""Ops whose first result is of the dtype and shape of what they read first."""


def infer_shapes(model: ir.Model) -> None:
    """Complete the dtype and shape of every value that lacks one, following the contents of shape tensors.

    What is known stays, symbolic dims keep their names. A dim that nothing names gets a name of its own, `unk__N`; it
    is asked for again where more may be known by then.
    """
    complete(State.of(model))


def complete(state: State, changed: Iterable[ir.Node] | None = None) -> bool:
    """`infer_shapes` for all nodes; where only some have `changed` since the last time, for what follows from them now.

    Of those that only read something else, and of whose results the rank is known, nothing follows but from the
    contents of shapes; all the same they are asked when all are. Returns whether that told anything new.
    """
    if changed is None:
        state.inferred = True
        for key, tensor in state.constants.items():
            _learn(state.values[key], tensor)
        asked = _unanswered(state.nodes)
    else:
        asked = _unanswered(_urgent(state, {one for node in changed for one in (node, *_holders(state, node))}))
    better = _ask(state, asked)
    if better:
        readers = {node for node, at in state.nodes.items() if not better.isdisjoint(at.inputs)}
        readers |= {at.holder for at in state.graphs.values() if at.holder and not better.isdisjoint(at.outputs)}
        _ask(state, {node for node in _behind(state, readers - asked) if any(map(_lacks, node.outputs))})
    return bool(better)


def _urgent(state: State, changed: set[ir.Node]) -> Iterator[ir.Node]:
    """Of `changed`, and of what reads shapes that may have other contents now, the nodes that must be asked at once."""
    shapes: set[str] = set()  # with contents that may be others now
    unknown: set[str] = set()  # that are new, so that all that reads them has changed
    for node, at in state.nodes.items():
        reading = bool(shapes) and not shapes.isdisjoint(at.inputs)
        if node in changed:
            reading = reading or not unknown.isdisjoint(at.inputs)
        elif not reading:
            continue
        if node.op_type in ALIKE and not node.domain:
            _be_alike(node.outputs[0], node.inputs[0])
        if reading:
            node.meta.pop(_ASKED, None)
        new = any([value.shape is None or value.type is None for value in node.outputs if value.name != ""])
        if any(map(_holds_integers, node.outputs)):
            shapes.update([key for key in at.outputs if key])
        elif new and node in changed:
            unknown.update([key for key in at.outputs if key])
        by_contents = reading or node in state.bodies or any([_holds_integers(v) for v in node.inputs if v is not None])
        if new or (by_contents and any(map(_lacks, node.outputs))):
            yield node


def _be_alike(value: ir.Value, source: ir.Value | None) -> None:
    if source is not None and source.type is not None and source.shape is not None:
        value.type, value.shape = value.type or source.type, value.shape or source.shape


def _behind(state: State, changed: set[ir.Node]) -> Iterator[ir.Node]:
    """`changed`, and the nodes behind them that read what may be known better now."""
    keys: set[str] = set()
    for node, at in state.nodes.items() if changed else ():
        if node in changed or (keys and not keys.isdisjoint(at.inputs)):
            yield node
            if any([_lacks(value) or _holds_integers(value) for value in node.outputs]):
                keys.update([key for key in at.outputs if key])


def _unanswered(nodes: Iterable[ir.Node]) -> set[ir.Node]:
    """Those of whose results something is not known, and that read something else than when they were asked last."""
    found = set[ir.Node]()
    for node in nodes:
        if not any(map(_lacks, node.outputs)):
            continue
        if node.op_type == "Constant" and not node.domain:
            _learn(node.outputs[0], constant_of(node))
        elif _is_new(node):
            found.add(node)
    return found


def _ask(state: State, wanted: set[ir.Node]) -> set[str]:
    """Infer what is not known of the results of `wanted`; returns the keys of what is known better now."""
    if not wanted:
        return set()
    better: set[str] = set()
    part = in_order(state, _with_shape_arithmetic(state, wanted))
    keys: set[str] = set()
    for node in part:
        keys.update(reads(state, node), state.nodes[node].outputs)
    keys.discard("")
    inner = holds_whole(state, part)
    # Where a long vector occurs, what does not follow from contents is told first, while its length can be said.
    for contents in (False, True) if any(is_long(state.values[key]) for key in keys) else (True,):
        names = Symbols(state, state.values if inner else keys)
        for info in infos(inferred(state, part, taken=names.old, contents=contents), inner=inner):
            value = state.values.get(info.name)
            if value is not None and _lacks(value) and take(value, info.type, names):
                better.add(info.name)
    for node in wanted:
        if any(map(_lacks, node.outputs)):
            node.meta[_ASKED] = _question(node)
    return better


class _Question(NamedTuple):
    """All that the shapes of a node's results follow from. held: the constants that sizes may follow from."""

    attributes: tuple[ir.Attr, ...]
    types: tuple[ir.TypeProtocol | None, ...]
    shapes: tuple[ir.Shape | None, ...]
    held: tuple[ir.TensorProtocol, ...]

    def same(self, other: _Question) -> bool:
        """Whether the answer is the same. Names of dims that were made up count by where they occur again."""
        if self.attributes != other.attributes or self.types != other.types or len(self.held) != len(other.held):
            return False
        for one, two in zip(self.held, other.held, strict=True):
            if one is not two and min(one.size, two.size) <= SMALL and one.tobytes() != two.tobytes():
                return False
        alike = all([one is two for one, two in zip(self.shapes, other.shapes, strict=True)])
        return alike or _pattern(self.shapes) == _pattern(other.shapes)


def _is_new(node: ir.Node) -> bool:
    asked = node.meta.get(_ASKED)
    now = _question(node) if asked is not None else None
    return asked is None or now is None or not asked.same(now)


def _question(node: ir.Node) -> _Question | None:
    """None where contents that are computed may be part of it."""
    attributes = tuple(node.attributes.data.values())
    read = [value for value in node.inputs if value is not None]
    for body in inner_graphs(attributes):
        read += [*body.inputs, *body.outputs]
    held: list[ir.TensorProtocol] = []
    by_numbers = node.op_type in _BY_NUMBERS
    for value in read:
        if by_numbers or _holds_integers(value):
            maker = value.producer()
            tensor = value.const_value if maker is None else constant_of(maker)
            if tensor is None:
                return None
            held.append(tensor)
    types, shapes = tuple([value.type for value in read]), tuple([value.shape for value in read])
    return _Question(attributes, types, shapes, tuple(held))


def _pattern(shapes: Iterable[ir.Shape | None]) -> list[object]:
    names: dict[str, int] = {}
    found: list[object] = []
    for shape in shapes:
        found.append(None if shape is None else len(shape.dims))
        for size in () if shape is None else shape.dims:
            name = size if isinstance(size, int) else size.value
            made = isinstance(name, str) and made_up(name)
            found.append(names.setdefault(str(name), -1 - len(names)) if made else name)
    return found


def forget_wrong_shapes(model: ir.Model) -> bool:
    """Drop all shapes that a file states for inner values and outputs where one of them cannot be; says whether.

    Exporters write the sizes of their example, though the inputs have dims that vary.
    """
    state = State.of(model)
    given = {str(size.value) for value in model.graph.inputs for size in value.shape or () if not isinstance(size, int)}
    wrong = False
    part = in_order(state, set(state.nodes))
    for info in infos(inferred(state, part, stated=False, taken=given), inner=holds_whole(state, part)):
        value, found = state.values.get(info.name), info.type.tensor_type.shape.dim
        if value is None or value.producer() is None or value.shape is None:
            continue
        if not info.type.tensor_type.HasField("shape"):
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
    return any([not isinstance(size, int) and made_up(size.value) for size in shape.dims])


def _learn(value: ir.Value, tensor: ir.TensorProtocol | None) -> None:
    if tensor is not None and (value.shape is None or value.type is None):
        value.shape, value.type = ir.Shape(tensor.shape.numpy()), ir.TensorType(tensor.dtype)


def _with_shape_arithmetic(state: State, wanted: set[ir.Node]) -> set[ir.Node]:
    """`wanted` and what computes the integers that it reads, from the Shape nodes on."""
    todo, found = list(wanted), set(wanted)
    while todo:
        node = todo.pop()
        if node.op_type in ("Shape", "Size"):
            continue
        for key in reads(state, node):
            maker = state.maker.get(key)
            if maker is not None and maker not in found and _holds_integers(state.values[key]):
                found.add(maker)
                todo.append(maker)
    return found


def _holders(state: State, node: ir.Node) -> Iterator[ir.Node]:
    """The nodes whose bodies hold `node`, the innermost first."""
    while (holder := state.graphs[state.nodes[node].graph].holder) is not None:
        yield holder
        node = holder


def _holds_integers(value: ir.Value) -> bool:
    """Whether a value has contents from which sizes may follow."""
    if value.dtype not in _INTEGERS:
        return False
    shape = value.shape
    return shape is None or len(shape.dims) <= 1
