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
    as_attributes,
    attribute,
    constant,
    dims,
    nodes,
    only_user,
    opset,
    same,
    scalar,
)

# Loads of a row are aligned for these, and no head is known to be larger.
_HEADS = range(8, 257, 8)
_BATCH, _LENGTH, _HEAD, _ELEMENT = range(4)


class _View(NamedTuple):
    """heads of `head` elements each, out of a value [batch, length, width]: all, or what an output of `split` holds.

    scale: what they are multiplied with on their way.
    """

    source: ir.Value
    heads: int
    head: int
    scale: float
    split: ir.Node | None = None
    output: int = 0


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

    A key whose mask is below -9000 is left out, which beside any other key has a weight of 0 anyway: so both differ
    for a query alone that may look at no key at all, and gets zeros. The node is called after the second MatMul,
    `NAME_attention`, and the function that comes with it says what it computes.
    """
    return _rewritten(model, skip, lambda name: True)


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
    if (k.heads, v.heads) != (q.heads, q.heads):
        return f"it has {q.heads}, {k.heads} and {v.heads} heads"
    if not q.scale * k.scale > 0:
        return "its scale is not positive"
    batch, queries = (dims(q.source) or ())[:2]
    keys = (dims(k.source) or ())[1]
    if not all(same(batch, (dims(one.source) or ())[0]) for one in (k, v)) or not same(keys, (dims(v.source) or ())[1]):
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
    """Follow `value` back to [batch, length, width]; axes: what each of its axes is. None where it is no such view."""
    scale = 1.0
    split: ir.Node | None = None
    output = 0
    while True:
        node = value.producer()
        if node is None or node.domain != "" or len(axes) != 4:
            return None
        if node.op_type == "Transpose":
            back = [0] * 4
            for axis, source in zip(axes, attribute(node, "perm", [3, 2, 1, 0]), strict=True):
                back[source] = axis
            axes = back
        elif node.op_type == "Mul" and scaled:
            number = scalar(node.inputs[1])
            if number is None:
                return None
            scale *= number
        elif node.op_type == "Split" and split is None and axes[attribute(node, "axis", 0)] == _HEAD:
            split, output = node, value.index() or 0
        elif node.op_type == "Reshape":
            return _reshaped(node, axes, scale, split, output)
        else:
            return None
        assert node.inputs[0] is not None
        value = node.inputs[0]


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
    _splits: dict[ir.Node, Sequence[ir.Value]] = field(default_factory=dict)

    def kernel(self, site: Site, fit: _Fit, node: ir.Node, name: str) -> None:
        """Put the node in the place of the site's end."""
        q, k, v = (self._part(one) for one in (fit.query, fit.key, fit.value))
        heads, head, scale = fit.query.heads, fit.query.head, fit.query.scale * fit.key.scale
        said = function(heads, head, fit.causal, scale, opset(self.model))
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

    def _part(self, view: _View) -> ir.Value:
        """The heads of a view side by side: its source, or the part of it that the heads' Split took."""
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
