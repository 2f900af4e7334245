"""Transposed layouts that exporters of TensorFlow and Paddle leave, and attention with the sequence first."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import (
    array,
    as_attributes,
    attribute,
    bypass,
    constant,
    dims,
    made_by,
    nodes,
    only_user,
    opset,
    replace,
)
from aot.passes._layouts import BROADCAST, MOVABLE, Moved, before, inverse, moved
from aot.passes._views import VIEWS, Layout, chain, shortest

# Nodes of a region; elements of a constant that is transposed with it.
_REGION = 400
_CONSTANT = 1 << 16


@dataclass
class _Region:
    """Nodes that can compute on what lies before a Transpose by `order`, with what each is told then."""

    order: tuple[int, ...]
    opset: int
    steps: _Steps
    moves: dict[ir.Node, Moved] = field(default_factory=dict)

    @functools.cached_property
    def back(self) -> tuple[int, ...]:
        """The order of a Transpose that undoes the one by `order`."""
        return inverse(self.order)

    def grow(self, seeds: Iterable[ir.Node], graph: ir.Graph | ir.Function | None) -> bool:
        """Take in all that is connected with `seeds` over values with the region's axes; False where there is none."""
        stack = list(seeds)
        while stack and len(self.moves) < _REGION:
            node = stack.pop()
            move = self._fits(node) if node not in self.moves and node.graph is graph else None
            if move is None:
                continue
            self.moves[node] = move
            stack += [use.node for value in node.outputs for use in value.uses() if not move.same]
            stack += [maker for value in self.operands(node) if (maker := value.producer()) is not None]
        return bool(self.moves)

    def _fits(self, node: ir.Node) -> Moved | None:
        several = len(node.outputs) > 1 and any(value.is_graph_output() for value in node.outputs)
        if node.domain or node.op_type not in MOVABLE or several:
            return None
        operands = list(self.operands(node))
        if not any(_rank(value) == len(self.order) for value in operands):
            return None
        for value in operands:
            data = array(value) if value.const_value is not None else None
            if data is not None and (data.size > _CONSTANT or before(data, self.order) is None):
                return None
            # A number is broadcast wherever it is; a vector would be broadcast along another axis.
            if (
                data is None
                and _rank(value) != len(self.order)
                and not (node.op_type in BROADCAST and value.shape == ())
            ):
                return None
        return moved(node, self.order, self.opset)

    def operands(self, node: ir.Node) -> Iterator[ir.Value]:
        """The inputs that have the region's axes."""
        every = node.op_type in BROADCAST or node.op_type == "Concat"
        return (value for value in (node.inputs if every else node.inputs[:1]) if value is not None)

    def entries(self) -> Iterator[ir.Value]:
        """The values that the region reads and does not compute; constants and numbers apart."""
        found = dict.fromkeys(value for node in self.moves for value in self.operands(node))
        inside = {value for node in self.moves for value in node.outputs}
        return (v for v in found if v not in inside and _rank(v) == len(self.order) and v.const_value is None)

    def exits(self) -> Iterator[tuple[ir.Value, list[ir.Node]]]:
        """The values of the region that are read outside it, and the nodes that read them there."""
        for node, move in self.moves.items():
            for value in node.outputs if not move.same else ():
                readers = [use.node for use in value.uses() if use.node not in self.moves]
                if readers or value.is_graph_output():
                    yield value, readers

    def source(self, value: ir.Value) -> ir.Value | None:
        """What `value` is a Transpose by `order` of."""
        node = made_by(value, "Transpose")
        return node.inputs[0] if node is not None and tuple(attribute(node, "perm", ())) == self.order else None

    def undoes(self, node: ir.Node) -> bool:
        """Whether the node is a Transpose back."""
        return not node.domain and node.op_type == "Transpose" and tuple(attribute(node, "perm", ())) == self.back

    def saved(self) -> int:
        """How many views fewer there are with the region moved; a chain of views counts as the shortest there is."""
        total = 0
        inside = {value for node in self.moves for value in node.outputs}
        for value in self.entries():
            alone = not value.is_graph_output() and all(use.node in self.moves for use in value.uses())
            maker = made_by(value, *VIEWS)
            found = chain(maker) if maker is not None else []
            if found and found[0].inputs[0] in inside:
                total -= 1  # It left the region, where its views are counted, and comes back through a Transpose.
            elif found and self.source(value) is not None:
                total += self.steps(found) - self.steps(found[:-1]) if alone else 0
            else:
                found = found if alone else []
                total -= self.steps(found, last=self.back) - self.steps(found) if found else 1
        for value, readers in self.exits():
            others = []
            for node in readers:
                if self.undoes(node):
                    found = _onwards(node)
                    total += self.steps(found) - self.steps(found[1:])
                else:
                    others.append(node)
            found = _onwards(others[0]) if len(readers) == 1 and others and not value.is_graph_output() else []
            if others or value.is_graph_output():
                total -= self.steps(found, first=self.order) - self.steps(found) if found else 1
        return total


def _rank(value: ir.Value) -> int | None:
    return None if value.shape is None else len(value.shape)


def _onwards(node: ir.Node) -> list[ir.Node]:
    """The views that begin with `node`, each but the first reading what nothing else does."""
    found: list[ir.Node] = []
    reader: ir.Node | None = node
    while reader is not None and made_by(reader.outputs[0], *VIEWS) is reader:
        found.append(reader)
        reader = only_user(reader.outputs[0])
    return found


class _Steps:
    """The fewest views that do what a chain does, with a Transpose in front of it or behind it.

    The same chains are asked of every region that they lie at: those of the same nodes that read the same values.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}

    def __call__(self, found: Sequence[ir.Node], first: tuple[int, ...] = (), last: tuple[int, ...] = ()) -> int:
        key = tuple(found), tuple([node.inputs for node in found]), first, last
        if key not in self._known:
            self._known[key] = _count(found, first, last)
        return self._known[key]


def _count(found: Sequence[ir.Node], first: tuple[int, ...], last: tuple[int, ...]) -> int:
    if not found:
        return 0
    shape = dims(found[0].inputs[0])
    if shape is not None and first:
        shape = tuple([shape[axis] for axis in inverse(first)])
    layout = Layout.of(shape)
    if layout is not None and first:
        layout.after = [layout.after[axis] for axis in first]
    if layout is None or not all(map(layout.apply, found)):
        return len(found) + bool(first or last)
    if last:
        layout.after = [layout.after[axis] for axis in last]
    return len(shortest(layout))


@graph_pass(
    in_one_sweep=True,
    anchors=("Transpose",),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,2,S,3] x) => (float[B,2,S,3] y) <float[2] scale = {2, 3}, float[1,1,1,2] shift = {4, 5}>
    { t = Transpose<perm = [0, 2, 3, 1]>(x)  r = Relu(t)  m = Mul(r, scale)  a = Add(m, shift)
      c = Concat<axis = 3>(a, r)  s = Softmax<axis = 3>(c)  u, v = Split<axis = -1, num_outputs = 2>(s)  w = Add(u, v)
      y = Transpose<perm = [0, 3, 1, 2]>(w) }
    """,
)
def cancel_transposes(model: ir.Model, skip: Skip) -> int:
    """f(Transpose(x)) = Transpose(f'(x)) for f that computes along no axis, or along axes that f' names as they were:
    Transposes that meet their inverse, that join other views, or that go in as several and come out as one.

    All nodes that are connected so are moved together, and only if fewer views are left.
    """
    changed, version, steps = 0, opset(model), _Steps()
    # What was seen to save nothing, by order: other Transposes at its borders would only find it again.
    vain: defaultdict[tuple[int, ...], set[ir.Node]] = defaultdict(set)
    for node in nodes(model, "Transpose"):
        order = tuple(attribute(node, "perm", ()))
        result = node.outputs[0]
        if not order or order == tuple(range(len(order))) or not (result.uses() or result.is_graph_output()):
            continue
        maker = node.inputs[0].producer() if node.inputs[0] is not None else None
        onwards = _Region(order, version, steps), [use.node for use in result.uses()]
        backwards = _Region(inverse(order), version, steps), [maker] if maker is not None else []
        for region, seeds in (onwards, backwards):
            if not region.grow([seed for seed in seeds if seed not in vain[region.order]], node.graph):
                continue
            if region.saved() > 0:
                _move(model, region, node.graph)
                vain.clear()
                changed += 1
                break
            vain[region.order].update(region.moves)
    return changed


def _move(model: ir.Model, region: _Region, graph: ir.Graph | ir.Function | None) -> None:
    """Compute the region before the Transpose; what is read outside it comes through one."""
    assert graph is not None
    exits = list(region.exits())
    known = {value: source for value in region.entries() if (source := region.source(value)) is not None}
    for node in [node for node in graph if node in region.moves]:
        _compute(model, region, node, known)
    for value, readers in exits:
        for reader in readers:
            if region.undoes(reader):
                bypass(reader, known[value])
        maker = value.producer()
        if maker is None or not (value.is_graph_output() or any(use.node not in region.moves for use in value.uses())):
            continue
        if len(maker.outputs) == 1:
            replace(maker, "Transpose", [known[value]], {"perm": region.order})
        else:
            result = _transposed(known[value], region.order, maker, f"{value.name}_back", value)
            ir.convenience.replace_all_uses_with(value, result)
    # Nothing reads them any more; another Transpose must not take them for a region.
    for node in reversed([node for node in graph if node in region.moves]):
        if not any(value.uses() or value.is_graph_output() for value in node.outputs):
            graph.remove(node, safe=True)


def _transposed(
    value: ir.Value, order: Sequence[int], at: ir.Node, name: str, like: ir.Value | None = None
) -> ir.Value:
    """A Transpose of `value` in front of `at`, which hands on its origin."""
    node = ir.node(
        "Transpose", [value], as_attributes({"perm": tuple(order)}), name=name, metadata_props=dict(at.metadata_props)
    )
    result, shape = node.outputs[0], dims(value)
    result.name, result.type = name, value.type
    result.shape = like.shape if like is not None else None if shape is None else ir.Shape([shape[i] for i in order])
    assert at.graph is not None
    at.graph.insert_before(at, node)
    return result


def _compute(model: ir.Model, region: _Region, node: ir.Node, known: dict[ir.Value, ir.Value]) -> None:
    """Put the moved form of `node` in front of it; `known` holds what is before the Transpose, and gets its results."""
    move, operands = region.moves[node], set(region.operands(node))
    inputs: list[ir.Value | None] = list(node.inputs)
    for index, value in enumerate(inputs):
        if value is None or value not in operands or _rank(value) == 0:
            continue
        if value not in known and value.const_value is not None:
            data = array(value)
            assert data is not None
            turned = before(data, region.order)
            same = turned is data
            known[value] = value if same else constant(model, f"{value.name}_turned", np.ascontiguousarray(turned))
        elif value not in known:
            known[value] = _transposed(value, region.back, node, f"{value.name}_turned")
        inputs[index] = known[value]
    for index, data in move.inputs.items():
        inputs += [None] * (index + 1 - len(inputs))
        inputs[index] = constant(model, f"{node.outputs[0].name}_in{index}", data)
    attributes = as_attributes({**node.attributes.data, **move.attributes})
    if move.same:
        replace(node, node.op_type, inputs, attributes)
        return
    new = ir.Node(
        *("", node.op_type, inputs, tuple(attributes.values())),
        num_outputs=len(node.outputs),
        name=f"{node.name}_moved",
        metadata_props=dict(node.metadata_props),
    )
    assert node.graph is not None
    node.graph.insert_before(node, new)
    for value, result in zip(node.outputs, new.outputs, strict=True):
        shape = dims(value)
        result.name, result.type = f"{value.name}_moved", value.type
        result.shape = None if shape is None else ir.Shape([shape[axis] for axis in region.back])
        known[value] = result
