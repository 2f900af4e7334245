"""Attention as one node of the plugin aot::attention: a rewrite of the final graph (`aot.form`), not in `PASSES`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from aot.graph import Pass, Skip, graph_pass
from aot.passes._attention import NARROW, Site, found, square
from aot.passes._attention_function import DOMAIN, NAME, function
from aot.passes._edit import (
    Dim,
    array,
    as_attributes,
    attribute,
    constant,
    dims,
    made_by,
    nodes,
    only_user,
    opset,
    same,
    scalar,
)

# Loads of a row are aligned for these, and no head is known to be larger.
_HEADS = range(8, 257, 8)
_BATCH, _LENGTH, _HEAD, _ELEMENT = range(4)
_JOINED = "_joined"


class _View(NamedTuple):
    """heads of `head` elements each, out of a value [batch, length, width]: all, or what an output of `split` holds.

    scale: what they are multiplied with on their way. repeated: how often each head is, one copy behind the other.
    axes: where the value is not [batch, length, width] but has its heads apart, what each of its axes is: they are put
    side by side then, as behind rotary embedding.
    """

    source: ir.Value
    heads: int
    head: int
    scale: float
    split: ir.Node | None = None
    output: int = 0
    repeated: int = 1
    axes: tuple[int, ...] | None = None

    @property
    def batch(self) -> Dim:
        """How many sequences."""
        return (dims(self.source) or (None, None, None))[0 if self.axes is None else self.axes.index(_BATCH)]

    @property
    def length(self) -> Dim:
        """How many positions."""
        return (dims(self.source) or (None, None, None))[1 if self.axes is None else self.axes.index(_LENGTH)]


class _Fit(NamedTuple):
    """The three views of a site, and its end: the Reshape to [batch, queries, width]."""

    query: _View
    key: _View
    value: _View
    causal: bool
    end: ir.Node


@graph_pass(
    anchors=("Softmax",),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float16[B,S,32] x, float16[B,S,32] z, float16[B,S,32] w, float16[B,1,1,S] m) => (float16[B,S,32] y)
    <int64[4] heads = {0, 0, 2, 16}, int64[3] flat = {0, 0, 32}>
    {
        q4 = Reshape(x, heads)  q = Transpose<perm = [0, 2, 1, 3]>(q4)
        k4 = Reshape(z, heads)  k = Transpose<perm = [0, 2, 3, 1]>(k4)
        v4 = Reshape(w, heads)  v = Transpose<perm = [0, 2, 1, 3]>(v4)
        a = MatMul(q, k)  b = Add(a, m)  p = Softmax(b)  o = MatMul(p, v)
        t = Transpose<perm = [0, 2, 1, 3]>(o)  y = Reshape(t, flat)
    }
    """,
)
def attention_kernel(model: ir.Model, skip: Skip) -> int:
    """softmax(s Q Kt + M) V, Q, K and V heads of [B, L, W], = aot::attention(Q, K, V, M) with scale s.

    K and V may have fewer heads, each repeated for a group of Q's: the kernel takes them as they are. Where something
    stands between the heads and [B, L, W], as rotary embedding does, they are put side by side behind it. A key whose
    mask is below -9000 is left out, which beside any other key has a weight of 0 anyway: so both differ for a query
    alone that may look at no key at all, and gets zeros. The node is called after the second MatMul, `NAME_attention`,
    and the function that comes with it says what it computes.
    """
    return _rewritten(model, skip, lambda name: True)


def is_joined(value: ir.Value | None) -> bool:
    """Whether an input of a node that was made here is a copy, its heads put side by side."""
    node = made_by(value, "Reshape")
    return node is not None and str(node.name).endswith(_JOINED)


def attention_kernel_of(names: Collection[str]) -> Pass:
    """The same rewrite, of the sites alone whose nodes will have these names."""
    return replace(attention_kernel, rewrite=lambda model, skip: _rewritten(model, skip, names.__contains__))


def _rewritten(model: ir.Model, skip: Skip, wanted: Callable[[str], bool]) -> int:
    making = _Making(model)
    changed = 0
    for node in nodes(model, "MatMul"):
        site = found(node)
        name = f"{node.name}_{NAME}"
        if site is None or not wanted(name):
            continue
        fit = _fit(site, node)
        if isinstance(fit, str):
            skip(node, fit)
            continue
        making.kernel(site, fit, node, name)
        changed += 1
    return changed


def _fit(site: Site, node: ir.Node) -> _Fit | str:
    """What the kernel reads and where its result goes; or why it cannot take the site."""
    query, turned, value, mask = site
    if query.dtype not in NARROW or any(one is not None and one.dtype != query.dtype for one in site):
        return "it is not in FP16 or BF16 throughout"
    q = _view(query, (_BATCH, _HEAD, _LENGTH, _ELEMENT))
    k = _view(turned, (_BATCH, _HEAD, _ELEMENT, _LENGTH))
    v = _view(value, (_BATCH, _HEAD, _LENGTH, _ELEMENT), scaled=False)
    if q is None or k is None or v is None:
        what = ("its queries", "its keys", "its values")[[q, k, v].index(None)]
        return f"{what} are not the heads of one value [batch, length, width]"
    if q.head not in _HEADS or (k.head, v.head) != (q.head, q.head):
        return f"its heads have the sizes {q.head}, {k.head}, {v.head}"
    # One head of keys is not repeated in the graph: it is broadcast by the product.
    grouped = all(one.heads * one.repeated == q.heads or (one.heads, one.repeated) == (1, 1) for one in (k, v))
    if q.repeated != 1 or k.heads != v.heads or not grouped:
        return f"it has {q.heads * q.repeated}, {k.heads} and {v.heads} heads"
    if not q.scale * k.scale > 0:
        return "its scale is not positive"
    batch, queries, keys = q.batch, q.length, k.length
    if not (same(batch, k.batch) and same(batch, v.batch) and same(keys, v.length)):
        return "its batch is broadcast, or not known"
    causal = mask is not None and square(mask)
    if mask is not None and not causal:
        said = dims(mask)
        if said is None or len(said) != 4 or said[1:3] != (1, 1):
            return "its mask is not one of keys, [batch, 1, 1, keys]"
        if not (same(said[0], batch) and same(said[3], keys)):
            return "its mask is broadcast over the batch or the keys"
    end = _end(node, (batch, queries, q.heads * q.head))
    return _Fit(q, k, v, causal, end) if end is not None else "its heads are not joined behind it"


def _view(value: ir.Value, axes: Sequence[int], *, scaled: bool = True) -> _View | None:
    """Follow `value` back to [batch, length, width], or as far as heads of known sizes go; axes: what each of its axes
    is. None where it has no such heads."""
    scale, repeated = 1.0, 1
    split: ir.Node | None = None
    before: _View | None = None  # of what the Split gives
    output = 0
    while True:
        node = value.producer()
        if node is None or node.domain != "":
            break
        if node.op_type == "Transpose":
            back = [0] * 4
            for axis, source in zip(axes, attribute(node, "perm", [3, 2, 1, 0]), strict=True):
                back[source] = axis
            axes = back
        elif node.op_type == "Mul" and scaled:
            number = scalar(node.inputs[1])
            if number is None:
                break
            scale *= number
        elif node.op_type == "Gather" and split is None and repeated == 1 and (times := _repeats(node, axes)):
            repeated = times
        elif node.op_type == "Split" and split is None and axes[attribute(node, "axis", 0)] == _HEAD:
            before = _apart(value, axes, scale, repeated)
            split, output = node, value.index() or 0
        elif node.op_type == "Reshape":
            found = _reshaped(node, axes, scale, split, output)
            if found is not None:
                return found._replace(repeated=repeated)
            break
        else:
            break
        assert node.inputs[0] is not None
        value = node.inputs[0]
    return _apart(value, axes, scale, repeated) if split is None else before


def _apart(value: ir.Value, axes: Sequence[int], scale: float, repeated: int) -> _View | None:
    """Heads that are put side by side behind `value`."""
    sizes = dims(value)
    if sizes is None or len(sizes) != len(axes):
        return None
    heads, head = sizes[axes.index(_HEAD)], sizes[axes.index(_ELEMENT)]
    if not isinstance(heads, int) or not isinstance(head, int):
        return None
    return _View(value, heads, head, scale, repeated=repeated, axes=tuple(axes))


def _repeats(node: ir.Node, axes: Sequence[int]) -> int | None:
    """How often a Gather has every head, one copy behind the other; None where it does something else."""
    index, sizes = array(node.inputs[1]), dims(node.inputs[0])
    axis = attribute(node, "axis", 0)
    if index is None or index.ndim != 1 or sizes is None or axes[axis] != _HEAD:
        return None
    heads = sizes[axis]
    if not isinstance(heads, int) or not heads or len(index) % heads:
        return None
    times = len(index) // heads
    return times if np.array_equal(index, np.repeat(np.arange(heads), times)) else None


def _reshaped(node: ir.Node, axes: Sequence[int], scale: float, split: ir.Node | None, output: int) -> _View | None:
    """The view that begins with this Reshape, if it is [batch, length, width] -> [batch, length, heads, head]."""
    source = node.inputs[0]
    before, after = dims(source), dims(node.outputs[0])
    if tuple(axes) != (_BATCH, _LENGTH, _HEAD, _ELEMENT) or source is None or before is None or after is None:
        return None
    if len(before) != 3 or not all(same(before[axis], after[axis]) for axis in (_BATCH, _LENGTH)):
        return None
    sizes = after[_HEAD:] if split is None else (_parts(split)[output], after[_ELEMENT])
    heads, head = sizes
    if not isinstance(heads, int) or not isinstance(head, int):
        return None
    return _View(source, heads, head, scale, split, output)


def _parts(split: ir.Node) -> list[Dim]:
    """How many heads each output of the Split has."""
    axis = attribute(split, "axis", 0)
    return [(dims(one) or (None,) * 4)[axis] for one in split.outputs]


def _end(node: ir.Node, shape: tuple[Dim, ...]) -> ir.Node | None:
    """The Reshape behind the attention that puts its heads side by side, nothing else read in between."""
    turned = only_user(node.outputs[0])
    if turned is None or turned.op_type != "Transpose" or list(attribute(turned, "perm", [])) != [0, 2, 1, 3]:
        return None
    end = only_user(turned.outputs[0])
    if end is None or (end.domain, end.op_type) != ("", "Reshape") or end.inputs[0] is not turned.outputs[0]:
        return None
    made = dims(end.outputs[0])
    fits = made is not None and len(made) == 3 and all(same(a, b) for a, b in zip(made, shape, strict=True))
    return end if fits else None


@dataclass
class _Making:
    """Makes the nodes; what several layers share is made once."""

    model: ir.Model
    _masks: dict[Any, ir.Value] = field(default_factory=dict)
    _joins: dict[Any, ir.Value] = field(default_factory=dict)
    _splits: dict[ir.Node, Sequence[ir.Value]] = field(default_factory=dict)

    def kernel(self, site: Site, fit: _Fit, node: ir.Node, name: str) -> None:
        """Put the node in the place of the site's end."""
        named = {"q": fit.query, "k": fit.key, "v": fit.value}
        q, k, v = (self._part(one, node, what) for what, one in named.items())
        heads, head, scale = fit.query.heads, fit.query.head, fit.query.scale * fit.key.scale
        said = function(heads, fit.key.heads, head, fit.causal, scale, opset(self.model))
        self.model.functions.setdefault(said.identifier(), said)
        self.model.opset_imports.setdefault(DOMAIN, 1)
        self.model.ir_version = max(self.model.ir_version or 0, 10)  # from there on, functions have overloads
        mask = self._zeros(q, k, node) if site.mask is None or fit.causal else self._flat(site.mask, node)
        attributes = {"heads": heads, "causal": int(fit.causal), "scale": scale}
        made = ir.Node(
            DOMAIN,
            NAME,
            [q, k, v, mask],
            tuple(as_attributes(attributes).values()),
            overload=said.overload,
            name=name,
            metadata_props=dict(node.metadata_props),
        )
        assert fit.end.graph is not None
        ir.convenience.replace_nodes_and_values(
            fit.end.graph, fit.end, [fit.end], [made], fit.end.outputs, made.outputs
        )

    def _part(self, view: _View, node: ir.Node, what: str) -> ir.Value:
        """The heads of a view side by side: its source, or the part of it that the heads' Split took."""
        if view.axes is not None:
            return self._joined(view, view.axes, node, what)
        if view.split is None:
            return view.source
        if view.split not in self._splits:
            widths = [int(heads) * view.head for heads in _parts(view.split) if isinstance(heads, int)]
            shape = [*(dims(view.source) or ())[:2]]
            sizes = constant(self.model, f"{view.split.name}_widths", np.array(widths))
            shapes = [ir.Shape([*shape, width]) for width in widths]
            self._splits[view.split] = self._before(
                view.split, "Split", [view.source, sizes], shapes, view.source.dtype, {"axis": -1}
            )
        return self._splits[view.split][view.output]

    def _joined(self, view: _View, axes: tuple[int, ...], node: ir.Node, what: str) -> ir.Value:
        """What has its heads apart as [batch, length, width]."""
        key = (view.source, axes)
        if key not in self._joins:
            perm = [axes.index(one) for one in (_BATCH, _LENGTH, _HEAD, _ELEMENT)]
            flat = constant(self.model, f"{node.name}_{what}_flat", np.array([0, 0, view.heads * view.head]))
            sizes, dtype = [view.batch, view.length], view.source.dtype
            apart, side = [ir.Shape([*sizes, view.heads, view.head])], [ir.Shape([*sizes, view.heads * view.head])]
            (turned,) = self._before(node, "Transpose", [view.source], apart, dtype, {"perm": perm}, f"{what}_turned")
            (self._joins[key],) = self._before(node, "Reshape", [turned, flat], side, dtype, what=f"{what}{_JOINED}")
        return self._joins[key]

    def _flat(self, mask: ir.Value, node: ir.Node) -> ir.Value:
        """[batch, 1, 1, keys] -> [batch, keys]."""
        if mask not in self._masks:
            axes = constant(self.model, f"{mask.name}_axes", np.array([1, 2]))
            batch, _, _, keys = dims(mask) or (None,) * 4
            shapes = [ir.Shape([batch, keys])]
            (self._masks[mask],) = self._before(node, "Squeeze", [mask, axes], shapes, mask.dtype)
        return self._masks[mask]

    def _zeros(self, q: ir.Value, k: ir.Value, node: ir.Node) -> ir.Value:
        """A mask that leaves nothing out, [batch, keys]."""
        batch, keys, dtype = (dims(q) or ())[0], (dims(k) or ())[1], q.dtype
        assert dtype is not None
        key = (batch, keys, dtype)
        if key in self._masks:
            return self._masks[key]
        if isinstance(batch, int) and isinstance(keys, int):
            made = constant(self.model, f"{node.name}_mask", np.zeros((batch, keys), dtype.numpy()))
        else:
            zero = constant(self.model, f"{node.name}_zero", np.zeros((), dtype.numpy()))
            one, int64 = [ir.Shape([1])], ir.DataType.INT64
            (many,) = self._before(node, "Shape", [q], one, int64, {"start": 0, "end": 1}, "batch")
            (long,) = self._before(node, "Shape", [k], one, int64, {"start": 1, "end": 2}, "keys")
            (shape,) = self._before(node, "Concat", [many, long], [ir.Shape([2])], int64, {"axis": 0})
            (made,) = self._before(node, "Expand", [zero, shape], [ir.Shape([batch, keys])], dtype)
        self._masks[key] = made
        return made

    @staticmethod
    def _before(
        node: ir.Node,
        op: str,
        inputs: Sequence[ir.Value],
        shapes: Sequence[ir.Shape],
        dtype: ir.DataType | None,
        attributes: Mapping[str, Any] | None = None,
        what: str = "",
    ) -> Sequence[ir.Value]:
        """The outputs of a new node in front of `node`, with its origin."""
        name = f"{node.name}_{NAME}_{what or op}"
        made = ir.Node(
            "",
            op,
            inputs,
            tuple(as_attributes(attributes or {}).values()),
            num_outputs=len(shapes),
            name=name,
            metadata_props=dict(node.metadata_props),
        )
        for index, (value, shape) in enumerate(zip(made.outputs, shapes, strict=True)):
            value.name = f"{name}_{index}"
            value.shape, value.type = shape, None if dtype is None else ir.TensorType(dtype)
        assert node.graph is not None
        node.graph.insert_before(node, made)
        return made.outputs
