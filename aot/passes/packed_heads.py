"""Queries, keys and values out of one packed tensor: picked one by one, or split and then brought into heads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import array, attribute, constant, dims, nodes, only_user, opset, scalar
from aot.passes._views import VIEWS, Layout, Size, View, chain, insert, told, views


class _Pick(NamedTuple):
    """One index of an axis of a value: `node` computes the result, which lacks that axis."""

    node: ir.Node
    axis: int
    at: int
    cost: int


def _picks(value: ir.Value) -> list[_Pick] | None:
    """How the value is read, if every reader picks one index of an axis: Gather, or Slice or Split with Squeeze."""
    found: list[_Pick] = []
    rank = len(value.shape or ())
    for use in value.uses():
        node = use.node
        if not rank or node.domain or use.idx != 0:
            return None
        if node.op_type == "Gather":
            index, shape = scalar(node.inputs[1]), dims(node.inputs[1])
            if index is None or shape != ():
                return None
            found.append(_Pick(node, attribute(node, "axis", 0) % rank, int(index), 1))
        elif node.op_type == "Slice":
            pick = _sliced(node, rank)
            if pick is None:
                return None
            found.append(pick)
        elif node.op_type == "Split":
            axis = attribute(node, "axis", 0) % rank
            for index, part in enumerate(node.outputs):
                squeeze = _squeezed(part, axis, rank)
                if squeeze is None or (dims(part) or ())[axis : axis + 1] != (1,):
                    return None
                found.append(_Pick(squeeze, axis, index, 2 if index else 1))
        else:
            return None
    return found


def _sliced(node: ir.Node, rank: int) -> _Pick | None:
    given = [array(value) for value in node.inputs[1:]]
    if len(given) < 3 or any(data is None or data.size != 1 for data in given):
        return None
    start, end, axis, *step = (int(data.reshape(())) for data in given if data is not None)
    squeeze = _squeezed(node.outputs[0], axis % rank, rank)
    if squeeze is None or end != start + 1 or start < 0 or step not in ([], [1]):
        return None
    return _Pick(squeeze, axis % rank, start, 2)


def _squeezed(value: ir.Value, axis: int, rank: int) -> ir.Node | None:
    node = only_user(value)
    if node is None or node.domain or node.op_type != "Squeeze":
        return None
    axes = array(node.inputs[1]) if len(node.inputs) > 1 else np.array(attribute(node, "axes", ()))
    return node if axes is not None and [int(one) % rank for one in axes.reshape(-1)] == [axis] else None


def _without(layout: Layout, axis: int) -> tuple[Layout, int] | None:
    """(the layout that leaves the picked factor where its neighbour is, the axis along which its parts then lie).

    The factor that follows the picked one in the source must be the outermost of a dim of the result: both together are
    a dim there, of which each part is a contiguous piece.
    """
    picked = layout.after[axis]
    after = [list(dim) for at, dim in enumerate(layout.after) if at != axis]
    home = next((dim for dim in layout.before if len(picked) == 1 and picked[0] in dim), [])
    follows = home[home.index(picked[0]) + 1 :] if home else []
    where = next((at for at, dim in enumerate(after) if follows and dim[:1] == follows[:1]), None)
    if where is None:
        return None
    after[where].insert(0, picked[0])
    return Layout(layout.sizes, layout.before, after), where


@graph_pass(
    anchors=("Gather", "Slice", "Split"),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,S,12] x) => (float[B,2,S,S] y) <int64[5] apart = {0, 0, 3, 2, 2}, int64 zero = {0}, int64 one = {1},
     int64 two = {2}>
    { r = Reshape(x, apart)  t = Transpose<perm = [2, 0, 3, 1, 4]>(r)  q = Gather(t, zero)  k = Gather(t, one)
      v = Gather(t, two)  s = Transpose<perm = [0, 1, 3, 2]>(k)  w = Mul(q, v)  y = MatMul(w, s) }
    """,
)
def packed_picks(model: ir.Model, skip: Skip) -> int:
    """Picking index 0, 1, ... of an axis of size n, which had been brought to the front of the packed channels, is a
    Split of the channels' heads into n parts: [B, S, n·H, D] → [B, n·H, S, D] → n times [B, H, S, D].
    """
    changed = 0
    for last in nodes(model, *VIEWS):
        value = last.outputs[0]
        if len(value.uses()) == 0 or value.is_graph_output():
            continue
        picks = _picks(value)
        if not picks or any(p.node.outputs[0].is_graph_output() or p.node.graph is not last.graph for p in picks):
            continue
        picks.sort(key=lambda pick: pick.at)
        axis, size = picks[0].axis, (dims(value) or ())[picks[0].axis]
        if [(p.axis, p.at) for p in picks] != [(axis, at) for at in range(size if isinstance(size, int) else 0)]:
            continue
        found = chain(last)
        source = found[0].inputs[0]
        layout = Layout.of(dims(source))
        if source is None or layout is None or not all(map(layout.apply, found)):
            continue
        joined = _without(layout, axis)
        if joined is None:
            skip(last, f"axis {axis} of size {size} is picked from, but its parts are not contiguous")
            continue
        fewest = views(joined[0])
        if fewest is None or len(fewest) + 1 >= len(found) + sum(pick.cost for pick in picks):
            continue
        whole = insert(model, fewest, source, last, f"{value.name}_whole")
        part = joined[0].size(joined[0].after[joined[1]]).over(Size(len(picks)))
        if part is None or part.symbols:
            continue
        results = [pick.node.outputs[0] for pick in picks]
        made = _split(model, whole, joined[1], [part.number] * len(picks), last, results)
        ir.convenience.replace_all_uses_with(results, made)
        changed += 1
    return changed


def _split(
    model: ir.Model, whole: ir.Value, axis: int, sizes: Sequence[int], before: ir.Node, parts: Sequence[ir.Value]
) -> tuple[ir.Value, ...]:
    """Split `whole` in front of `before`; the results have the names and shapes of `parts`, in whose place they are."""
    assert before.graph is not None
    given = {} if opset(model) >= 13 else {"split": list(sizes)}
    also = [] if given else [constant(model, f"{whole.name}_sizes", np.array(sizes, np.int64))]
    node = ir.node("Split", [whole, *also], {"axis": axis, **given}, num_outputs=len(sizes), name=f"{whole.name}_Split")
    node.metadata_props.update(before.metadata_props)
    for part, result in zip(parts, node.outputs, strict=True):
        result.name, result.type, result.shape = f"{part.name}_part", part.type, part.shape
    before.graph.insert_before(before, node)
    return tuple(node.outputs)


@graph_pass(
    anchors=("Split",),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,S,16] x) => (float[B,4,S,S] y)
    <int64[3] sizes = {8, 4, 4}, int64[4] four = {0, 0, 4, 2}, int64[4] two = {0, 0, 2, 2}>
    { q, k, v = Split<axis = -1>(x, sizes)  qr = Reshape(q, four)  kr = Reshape(k, two)  vr = Reshape(v, two)
      qt = Transpose<perm = [0, 2, 1, 3]>(qr)  kt = Transpose<perm = [0, 2, 3, 1]>(kr)
      vt = Transpose<perm = [0, 2, 1, 3]>(vr)  kk = Concat<axis = 1>(kt, kt)  vv = Concat<axis = 1>(vt, vt)
      w = Mul(qt, vv)  y = MatMul(w, kk) }
    """,
)
def split_heads(model: ir.Model, skip: Skip) -> int:
    """Views of the parts of a tensor, all alike, are the parts of one view of it: a Reshape of the channels into heads,
    and the Transpose that brings heads forward. Parts that are turned in another way are turned once more.
    """
    changed = 0
    for node in nodes(model, "Split"):
        readers = [only_user(part) for part in node.outputs]
        site = _alike(node, [reader for reader in readers if reader is not None])
        if site is not None:
            changed += (_reshape_first if site.op == "Reshape" else _transpose_first)(model, node, site)
    return changed


class _Parts(NamedTuple):
    """The parts of a split along `axis` of `source`, and the views of type `op` that read one of them each."""

    op: str
    source: ir.Value
    axis: int
    readers: list[ir.Node]


def _alike(node: ir.Node, readers: list[ir.Node]) -> _Parts | None:
    source = node.inputs[0]
    shape = dims(source)
    ops = {"" if reader.domain or reader.graph is not node.graph else reader.op_type for reader in readers}
    if source is None or shape is None or len(readers) < len(node.outputs) or len(ops) > 1 or node.outputs[0] is None:
        return None
    if not ops <= {"Reshape", "Transpose"} or any(reader.outputs[0].is_graph_output() for reader in readers):
        return None
    return _Parts(ops.pop(), source, attribute(node, "axis", 0) % len(shape), readers)


def _reshape_first(model: ir.Model, node: ir.Node, site: _Parts) -> bool:
    """Reshape what is split, where the parts' shapes differ in one dim, which the split dim begins with."""
    whole, shapes, places = Layout.of(dims(site.source)), list[list[Size]](), list[set[int]]()
    for reader in site.readers:
        layout = Layout.of(dims(reader.inputs[0]))
        if layout is None or whole is None or not layout.apply(reader):
            return False
        shapes.append([layout.size(dim) for dim in layout.after])
        ahead = sum(map(len, layout.before[: site.axis]))
        # Where all in front of the split dim is in front: more than one place, where there are dims of size 1.
        places.append({at for at in range(len(shapes[-1])) if sum(map(len, layout.after[:at])) == ahead})
    if whole is None or len({len(shape) for shape in shapes}) > 1:
        return False
    for at in set.intersection(*places):
        rests = {(*shape[:at], *shape[at + 1 :]) for shape in shapes}
        sizes = [shape[at].number for shape in shapes]
        if len(rests) > 1 or any(shape[at].symbols for shape in shapes):
            continue
        after = [*shapes[0][:at], Size(sum(sizes)), *shapes[0][at + 1 :]]
        view = told([whole.size(dim) for dim in whole.before], after)
        if view is None:
            return False
        value = insert(model, [View(*view, after)], site.source, node, f"{node.outputs[0].name}_whole")
        results = [reader.outputs[0] for reader in site.readers]
        ir.convenience.replace_all_uses_with(results, _split(model, value, at, sizes, node, results))
        return True
    return False


def _transpose_first(model: ir.Model, node: ir.Node, site: _Parts) -> bool:
    """Transpose what is split as most of the parts are transposed; the others are turned from there."""
    whole = Layout.of(dims(site.source))
    orders = [tuple(attribute(reader, "perm", ())) for reader in site.readers]
    (order, times), sizes = Counter(orders).most_common(1)[0], [(dims(part) or ())[site.axis] for part in node.outputs]
    if whole is None or times < 2 or not order or not all(isinstance(size, int) for size in sizes):
        return False
    after = [whole.size(whole.before[axis]) for axis in order]
    value = insert(model, [View("Transpose", list(order), after)], site.source, node, f"{node.outputs[0].name}_whole")
    parts = _split(model, value, order.index(site.axis), [int(str(n)) for n in sizes], node, node.outputs)
    for reader, part, own in zip(site.readers, parts, orders, strict=True):
        part.shape = ir.Shape([(dims(reader.inputs[0]) or ())[axis] for axis in order])
        if own == order:
            ir.convenience.replace_all_uses_with(reader.outputs[0], part)
        else:
            reader.replace_input_with(0, part)
            reader.attributes["perm"] = ir.AttrInt64s("perm", [order.index(axis) for axis in own])
    return True
