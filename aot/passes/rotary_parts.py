"""Rotary position embedding written for the two parts of x apart, each joined from two products."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import array, attribute, constant, dims, made_by, nodes, only_user, opset, replace
from aot.passes.rotary import behind, half_of, is_of_body, parts_of, signed


class _Apart(NamedTuple):
    """[a·cos - b·sin, b·cos + a·sin], joined by `concat`, for the halves a, b of x along its last axis.

    paired: that axis has two elements, which a and b do not have as an axis.
    """

    concat: ir.Node
    x: ir.Value
    cos: ir.Value
    sin: ir.Value
    paired: bool


@graph_pass(
    in_one_sweep=True,
    anchors=("Concat",),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,S,4] q, float[B,S,4] k, float[1,S,2] c, float[1,S,2] s) => (float[B,S,4] y)
    <int64[2] two = {2, 2}>
    { a, b = Split<axis = -1>(q, two)  m = Mul(a, c)  n = Mul(b, s)  u = Sub(m, n)  o = Mul(b, c)  p = Mul(a, s)
      v = Add(o, p)  x = Concat<axis = -1>(u, v)
      d, e = Split<axis = -1>(k, two)  f = Mul(d, c)  g = Mul(e, s)  h = Sub(f, g)  i = Mul(e, c)  j = Mul(d, s)
      l = Add(i, j)  z = Concat<axis = -1>(h, l)  y = Mul(x, z) }
    """,
)
def rotary_parts(model: ir.Model, skip: Skip) -> int:
    """With a, b the halves of x: [a·cos - b·sin, b·cos + a·sin] = x·[cos, cos] + [b, a]·[-sin, sin], so too where they
    are the two elements of a last axis, and cos and sin one number for both.

    The tables are made once for all that are rotated by them, so that this is done for two and more. Exact.
    """
    if opset(model) < 13:
        return 0
    sites = [site for site in _apart(model) if not is_of_body(model, site.cos) and not is_of_body(model, site.sin)]
    shared = Counter((site.cos, site.sin) for site in sites)
    tables: dict[tuple[ir.Value, ir.Value], tuple[ir.Value, ir.Value]] = {}
    changed = 0
    for site in sites:
        key, at = (site.cos, site.sin), site.concat
        if shared[key] < 2:
            skip(at, "nothing else is rotated by the same angles, so that nothing would be saved")
            continue
        if key not in tables:
            tables[key] = _tables(model, site)
        cos, sin = tables[key]
        shape, name = dims(site.x) or (), at.outputs[0].name
        first, second = parts_of(model, at, site.x, len(shape) - 1, [int(str(shape[-1])) // 2] * 2, f"{name}_halves")
        swapped = _made(at, "Concat", "swapped", [second, first], site.x, {"axis": -1})
        plain, turned = (
            _made(at, "Mul", tag, [value, table], site.x)
            for tag, value, table in (("plain", site.x, cos), ("turned", swapped, sin))
        )
        replace(at, "Add", [plain, turned])
        changed += 1
    return changed


def _made(
    at: ir.Node,
    op: str,
    tag: str,
    inputs: list[ir.Value],
    like: ir.Value,
    attributes: dict[str, int] | None = None,
) -> ir.Value:
    """The output of a new node in front of `at`, of the type and shape of `like`."""
    name = f"{at.outputs[0].name}_{tag}"
    node = ir.node(op, inputs, attributes, name=name, metadata_props=dict(at.metadata_props))
    value = node.outputs[0]
    value.name, value.type, value.shape = name, like.type, like.shape
    assert at.graph is not None
    at.graph.insert_before(at, node)
    return value


def _apart(model: ir.Model) -> Iterator[_Apart]:
    for concat in nodes(model, "Concat"):
        shape = dims(concat.outputs[0])
        if len(concat.inputs) != 2 or shape is None or attribute(concat, "axis") not in (-1, len(shape) - 1):
            continue
        views = [made_by(value, "Unsqueeze") for value in concat.inputs]
        paired = all(view is not None and _along_last(view, len(shape)) for view in views)
        joined = [view.inputs[0] for view in views if view is not None] if paired else concat.inputs
        for a, b, cos, sin in _terms(joined[0], joined[1]):
            x = _parted(a, b, len(shape), paired=paired)
            if x is None or dims(x) != shape or not x.dtype == cos.dtype == sin.dtype:
                continue
            wide = [1 if paired else (dims(table) or (0,))[-1] for table in (cos, sin)]
            if all(isinstance(size, int) and 2 * size == shape[-1] for size in wide):
                yield _Apart(concat, x, cos, sin, paired)
                break


def _parted(a: ir.Value, b: ir.Value, rank: int, *, paired: bool) -> ir.Value | None:
    """What a and b are the halves of; its two elements, which have the last axis no more, where they are `paired`."""
    parts: list[ir.Value | None] = [a, b]
    if paired:
        views = [made_by(value, "Squeeze") for value in parts]
        parts = [view.inputs[0] if view is not None and _along_last(view, rank) else None for view in views]
    x = half_of(parts[0], 0)
    return x if x is half_of(parts[1], 1) else None


def _along_last(view: ir.Node, rank: int) -> bool:
    """Whether it adds or drops the last axis of a tensor of that rank, and no other."""
    axes = array(view.inputs[1]) if len(view.inputs) > 1 else None
    return axes is not None and axes.size == 1 and int(axes.item()) in (-1, rank - 1)


def _terms(first: ir.Value | None, second: ir.Value | None) -> Iterator[tuple[ir.Value, ...]]:
    """a, b, cos, sin, where the values are a·cos - b·sin and b·cos + a·sin, and nothing else reads the products.

    Twice, since a and b may be cos and sin as well.
    """
    difference, total = made_by(first, "Sub"), made_by(second, "Add")
    if difference is None or total is None:
        return
    products = [made_by(value, "Mul") for value in (*difference.inputs, *total.inputs)]
    if any(one is None or only_user(one.outputs[0]) not in (difference, total) for one in products):
        return
    ac, bs, *rest = (frozenset(one.inputs) for one in products if one is not None)
    for bc, as_ in (rest, rest[::-1]):
        common = (ac & as_, bs & bc, ac & bc, bs & as_)
        found = [value for values in common for value in values if value is not None]
        if all(len(values) == 1 for values in common) and len(set(found)) == 4:
            yield tuple(found)


def _tables(model: ir.Model, site: _Apart) -> tuple[ir.Value, ir.Value]:
    """[cos, cos] and [-sin, sin]; for pairs cos, which is broadcast, and [-sin, sin], along a new last axis."""
    cos, sin = site.cos, site.sin
    if site.paired:
        last = constant(model, f"{cos.name}_last", np.array([-1], np.int64))
        wide = behind(model, sin, ir.node("Unsqueeze", [sin, last], name=f"{sin.name}_of_pairs"))
        return behind(model, cos, ir.node("Unsqueeze", [cos, last], name=f"{cos.name}_of_pairs")), signed(
            model, wide, (-1, 1)
        )
    minus = behind(model, sin, ir.node("Neg", [sin], name=f"{sin.name}_minus"), sin.shape)
    twice = ir.node("Concat", [cos, cos], {"axis": -1}, name=f"{cos.name}_twice")
    both = ir.node("Concat", [minus, sin], {"axis": -1}, name=f"{sin.name}_signed")
    return behind(model, cos, twice), behind(model, minus, both)
