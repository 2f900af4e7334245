"""Rotary position embedding, x·cos + [-x2, x1]·sin with x1, x2 the halves of x: in the fewest nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import array, attribute, bypass, constant, dims, made_by, nodes, only_user, opset, replace, scalar


class _Rotary(NamedTuple):
    """x·cos + swapped·sin, ending in `add`. swapped: the Concat of the halves the other way round, `negated` where the
    first one is negated."""

    add: ir.Node
    x: ir.Value
    cos: ir.Value
    sin: ir.Value
    swapped: ir.Node
    product: ir.Node
    negated: bool


def _rotary(add: ir.Node) -> _Rotary | None:
    for at in (0, 1):
        plain, turned = made_by(add.inputs[at], "Mul"), made_by(add.inputs[1 - at], "Mul")
        if plain is None or turned is None:
            return None
        for side in (0, 1):
            swapped = made_by(turned.inputs[side], "Concat")
            halves = _swapped(swapped) if swapped is not None else None
            if swapped is None or halves is None or halves[0] not in plain.inputs:
                continue
            x, negated = halves
            other = plain.inputs[1 if plain.inputs[0] is x else 0]
            inner = ((plain, add), (turned, add), (swapped, turned))
            sin = turned.inputs[1 - side]
            if other is None or sin is None or any(only_user(node.outputs[0]) is not reader for node, reader in inner):
                continue
            return _Rotary(add, x, other, sin, swapped, turned, negated)
    return None


def _swapped(concat: ir.Node) -> tuple[ir.Value, bool] | None:
    """(x, whether its second half is negated), where the Concat is x with its halves along the last axis swapped."""
    if len(concat.inputs) != 2:
        return None
    second, first = concat.inputs
    minus = made_by(second, "Neg")
    if minus is not None:
        second = minus.inputs[0]
    upper, lower = half_of(second, 1), half_of(first, 0)
    rank = len(upper.shape) if upper is not None and upper.shape is not None else 0
    if upper is None or upper is not lower or attribute(concat, "axis") not in (-1, rank - 1):
        return None
    return upper, minus is not None


def half_of(value: ir.Value | None, which: int) -> ir.Value | None:
    """What `value` is the lower (0) or upper (1) half of, along the last axis."""
    node = made_by(value, "Slice", "Split")
    source = node.inputs[0] if node is not None else None
    shape = dims(source)
    size = shape[-1] if shape else None
    if node is None or value is None or shape is None or not isinstance(size, int) or size % 2:
        return None
    last = (-1, len(shape) - 1)
    if node.op_type == "Split":
        halves = len(node.outputs) == 2 and dims(value) == (*shape[:-1], size // 2)
        return source if halves and attribute(node, "axis", 0) in last and node.outputs[which] is value else None
    told = [array(given) for given in node.inputs[1:]]
    if len(told) < 3 or any(data is None or data.size != 1 for data in told):
        return None
    start, end, axis, *step = (int(data.reshape(())) for data in told if data is not None)
    fits = (start, min(end, size)) == (which * size // 2, (which + 1) * size // 2)
    return source if fits and axis in last and step in ([], [1]) else None


def _found(model: ir.Model) -> Iterator[_Rotary]:
    return (found for node in nodes(model, "Add") if (found := _rotary(node)) is not None)


@graph_pass(
    anchors=("Neg",),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,2,S,4] x, float[1,1,S,4] cos, float[1,1,S,4] sin) => (float[B,2,S,4] y)
    <int64[1] a = {0}, int64[1] b = {2}, int64[1] c = {4}, int64[1] last = {3}>
    { p = Mul(x, cos)  l = Slice(x, a, b, last)  u = Slice(x, b, c, last)  n = Neg(u)  h = Concat<axis = -1>(n, l)
      q = Mul(h, sin)  y = Add(p, q) }
    """,
)
def rotary_form(model: ir.Model, skip: Skip) -> int:
    """[-x2, x1]·sin = [x2, x1]·(sin·[-1, 1]), with the last product once for all layers; and one Split makes both
    halves. Negation is exact.
    """
    changed = 0
    known: dict[ir.Value, ir.Value] = {}
    for site in _found(model):
        size = (dims(site.x) or ())[-1]
        whole = (dims(site.sin) or (None,))[-1] == size
        if not site.negated or opset(model) < 13 or not isinstance(size, int) or not whole:
            continue
        if is_of_body(model, site.sin):
            continue
        if site.sin not in known:
            known[site.sin] = _signed(model, site, size)
        swap, rank = site.swapped, len(dims(site.x) or ())
        lower, upper = parts_of(model, swap, site.x, rank - 1, [size // 2] * 2, f"{swap.outputs[0].name}_halves")
        swapped = ir.node("Concat", [upper, lower], {"axis": -1}, name=f"{swap.name}_swapped")
        swapped.metadata_props.update(swap.metadata_props)
        result = swapped.outputs[0]
        result.name, result.type, result.shape = f"{swap.outputs[0].name}_swapped", site.x.type, swap.outputs[0].shape
        assert swap.graph is not None
        swap.graph.insert_before(swap, swapped)
        replace(site.product, "Mul", [result, known[site.sin]])
        changed += 1
    return changed


def _signed(model: ir.Model, site: _Rotary, size: int) -> ir.Value:
    """sin with its first half negated."""
    signs = [-1] * (size // 2) + [1] * (size // 2)
    return signed(model, site.sin, signs)


def signed(model: ir.Model, sin: ir.Value, signs: Sequence[int]) -> ir.Value:
    """sin with signs along its last axis."""
    assert sin.dtype is not None
    factors = constant(model, f"{sin.name}_signs", np.array(signs, sin.dtype.numpy()))
    return behind(model, sin, ir.node("Mul", [sin, factors], name=f"{sin.name}_signed"), sin.shape)


def behind(model: ir.Model, value: ir.Value, node: ir.Node, shape: ir.Shape | None = None) -> ir.Value:
    """What a new node makes of `value`: behind the node that makes that, or in front of all, so that all can read it.

    It is of the type of `value`, and called after the node.
    """
    result, maker = node.outputs[0], value.producer()
    result.name, result.type, result.shape = node.name, value.type, shape
    if maker is not None and maker.graph is not None:
        node.metadata_props.update(maker.metadata_props)
        maker.graph.insert_after(maker, node)
    else:
        model.graph.insert_before(model.graph[0], node)
    return result


def is_of_body(model: ir.Model, value: ir.Value) -> bool:
    """Whether it is an input of a body: what is made of it could not be shared with what lies outside."""
    return value.producer() is None and value.is_graph_input() and value not in model.graph.inputs


@graph_pass(
    anchors=("Concat",),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,2,S,4] w, float[1,1,S,4] cos, float[1,1,S,4] sin) => (float[B,2,S,4] y)
    <int64[2] two = {2, 2}, float half = {0.5}>
    { x = Relu(w)  p = Mul(x, cos)  l, u = Split<axis = -1>(x, two)  h = Concat<axis = -1>(u, l)  q = Mul(h, sin)
      r = Add(p, q)
      y = Mul(r, half) }
    """,
)
def rotary_scale(model: ir.Model, skip: Skip) -> int:
    """(x·cos + x'·sin)·s = (sx)·cos + (sx)'·sin for a number s, which can then join the layer that makes x."""
    changed = 0
    for site in _found(model):
        mul = only_user(site.add.outputs[0])
        if mul is None or mul.domain or mul.op_type != "Mul" or mul.graph is not site.add.graph:
            continue
        number = mul.inputs[1 if mul.inputs[0] is site.add.outputs[0] else 0]
        shape, maker = dims(number), site.x.producer()
        first = site.add.graph
        if number is None or scalar(number) is None or shape is None or len(shape) > 1 or maker is None:
            continue
        if maker.graph is not first or first is None or site.x.is_graph_output() or not _only_rotated(site):
            continue
        scaled = ir.node("Mul", [site.x, number], name=f"{mul.name}_ahead", metadata_props=dict(mul.metadata_props))
        result = scaled.outputs[0]
        result.name, result.type, result.shape = f"{mul.outputs[0].name}_ahead", site.x.type, site.x.shape
        ir.convenience.replace_all_uses_with(site.x, result)
        scaled.replace_input_with(0, site.x)
        first.insert_after(maker, scaled)
        bypass(mul, site.add.outputs[0])
        changed += 1
    return changed


_ON_THE_WAY = ("Mul", "Neg", "Split", "Slice", "Concat")


def _only_rotated(site: _Rotary) -> bool:
    """Whether nothing but the rotation reads x, or what is made of x on the way to its sum."""
    todo = [site.x]
    while todo:
        value = todo.pop()
        if value.is_graph_output():
            return False
        readers = {use.node for use in value.uses()} - {site.add}
        if any(node.domain or node.op_type not in _ON_THE_WAY for node in readers):
            return False
        todo += [output for node in readers for output in node.outputs]
    return True


@graph_pass(
    anchors=("Split",),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,4,S,4] x, float[1,1,S,4] cos, float[1,1,S,4] sin) => (float[B,2,S,4] o)
    <int64[2] two = {2, 2}, int64[3] heads = {2, 1, 1}>
    { q, k, v = Split<axis = 1>(x, heads)
      a = Mul(q, cos)  b, c = Split<axis = -1>(q, two)  d = Concat<axis = -1>(c, b)  e = Mul(d, sin)  y = Add(a, e)
      f = Mul(k, cos)  g, h = Split<axis = -1>(k, two)  i = Concat<axis = -1>(h, g)  j = Mul(i, sin)  z = Add(f, j)
      l = Mul(z, v)  o = Add(y, l) }
    """,
)
def rotate_together(model: ir.Model, skip: Skip) -> int:
    """Queries and keys that lie beside each other and are rotated alike are rotated as one, and split afterwards."""
    sites = {site.x: site for site in _found(model)}
    changed = 0
    for split in nodes(model, "Split"):
        shape, parts = dims(split.inputs[0]), split.outputs
        sizes = array(split.inputs[1]) if len(split.inputs) > 1 else None
        first, second = (sites.get(part) for part in parts[:2]) if len(parts) > 1 else (None, None)
        if first is None or second is None or sizes is None or shape is None or first.negated or second.negated:
            continue
        graphs = {split.graph, first.add.graph, second.add.graph}
        if len(graphs) > 1 or any(site.add.outputs[0].is_graph_output() for site in (first, second)):
            continue
        axis = attribute(split, "axis", 0) % len(shape)
        if (first.cos, first.sin) != (second.cos, second.sin) or not (_only_rotated(first) and _only_rotated(second)):
            continue
        if any(not _repeated(table, axis, len(shape)) for table in (first.cos, first.sin)):
            continue
        _together(model, split, axis, [int(size) for size in sizes], (first, second))
        changed += 1
    return changed


def _repeated(table: ir.Value, axis: int, rank: int) -> bool:
    """Whether the table is the same along that axis, which must not be the last."""
    shape = dims(table)
    place = axis - rank + len(shape) if shape is not None else 0
    return shape is not None and axis < rank - 1 and (place < 0 or shape[place] == 1)


def _together(model: ir.Model, split: ir.Node, axis: int, sizes: list[int], sites: tuple[_Rotary, _Rotary]) -> None:
    """Rotate both parts at once, in front of the earlier of the two sites."""
    first, second = sites
    graph, shape, source = split.graph, dims(split.inputs[0]), split.inputs[0]
    assert graph is not None
    assert shape is not None
    assert source is not None
    name = str(first.add.outputs[0].name)
    if len(sizes) > 2:
        source, *rest = parts_of(model, split, source, axis, [sum(sizes[:2]), *sizes[2:]], f"{name}_both")
        ir.convenience.replace_all_uses_with(split.outputs[2:], rest)
    at = next(node for node in graph if node in (first.add, second.add))
    lower, upper = parts_of(model, at, source, len(shape) - 1, [int(str(shape[-1])) // 2] * 2, f"{name}_halves")
    swapped = ir.node("Concat", [upper, lower], {"axis": -1}, name=f"{name}_swapped")
    turned = ir.node("Mul", [swapped.outputs[0], first.sin], name=f"{name}_turned")
    plain = ir.node("Mul", [source, first.cos], name=f"{name}_plain")
    both = ir.node("Add", [plain.outputs[0], turned.outputs[0]], name=f"{name}_rotated")
    for node in (swapped, turned, plain, both):
        node.metadata_props.update(first.add.metadata_props)
        (result,) = node.outputs
        result.name, result.type = node.name, source.type
        result.shape = ir.Shape([*shape[:axis], sum(sizes[:2]), *shape[axis + 1 :]])
    graph.insert_before(at, (swapped, turned, plain, both))
    parts = parts_of(model, at, both.outputs[0], axis, sizes[:2], f"{name}_parts")
    ir.convenience.replace_all_uses_with([first.add.outputs[0], second.add.outputs[0]], parts)


def parts_of(
    model: ir.Model, at: ir.Node, source: ir.Value, axis: int, sizes: list[int], name: str
) -> tuple[ir.Value, ...]:
    """The parts of a Split of `source` in front of `at`."""
    told, shape = constant(model, f"{name}_sizes", np.array(sizes, np.int64)), dims(source)
    node = ir.node("Split", [source, told], {"axis": axis}, num_outputs=len(sizes), name=name)
    node.metadata_props.update(at.metadata_props)
    for number, (part, size) in enumerate(zip(node.outputs, sizes, strict=True)):
        part.name, part.type = f"{name}_{number}", source.type
        part.shape = None if shape is None else ir.Shape([*shape[:axis], size, *shape[axis + 1 :]])
    assert at.graph is not None
    at.graph.insert_before(at, node)
    return tuple(node.outputs)
