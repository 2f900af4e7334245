"""Nodes whose result is known before anything is fed."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.graph.constants import lift_constants
from aot.graph.state import CONTROL, inner_graphs
from aot.passes._compute import Array, Unfoldable, compute, foldable
from aot.passes._compute_elementwise import cast
from aot.passes._edit import attribute, constant, every_node, nodes, replace, tensor

SMALL = 1 << 20
"""Bytes. A larger result is kept only if it takes the place of at least as many bytes of weights."""
TINY = 1 << 14
"""Bytes. Nothing up to here is asked what it is computed from."""
GROWTH = 1 << 24
"""Bytes by which the small results may make a model larger, all together."""
LIMIT = "aot.fold_limit"
"""Where a model (`meta`) says another number than `GROWTH`."""
_BY_SHAPE = frozenset(("Shape", "Size", "CastLike"))
_GROWN = "aot.folded"
"""Where a model keeps how much of `GROWTH` is used up."""


@graph_pass(
    blind=True,
    in_one_sweep=True,
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,4] x) => (float[B,4] y) <float[4] a = {1, 2, 3, 4}, float[4] b = {4, 3, 2, 1}>
    { c = Add(a, b)  y = Mul(x, c) }
    """,
)
def fold_constants(model: ir.Model, skip: Skip) -> int:
    """A node whose inputs are all constants is its result, computed once; so are the shape of what has a static shape
    and the type of what is cast like it. What Constant nodes hold becomes initializers.

    What random or quantizing nodes make is not constant, nor is an initializer that is an input too. Nothing makes the
    model larger by more than `GROWTH`: what is larger than `SMALL`, or a weight in another form, takes the place of
    weights that nothing else reads.
    """
    lifted = lift_constants(model) if _has_any_to_lift(model) else 0
    folding = _Folding(model)
    for node in every_node(model):
        folding.visit(node)
    return lifted + folding.write(skip)


def _has_any_to_lift(model: ir.Model) -> bool:
    holders = nodes(model, *CONTROL)
    return any(nodes(model, "Constant")) or any(
        body.initializers for node in holders for body in inner_graphs(node.attributes.data.values())
    )


class _Folding:
    """One sweep: `known` holds the results so far, `made` the nodes they came from, in order; `paying` what is left of
    the bytes of weights that go, `growth` the bytes that are added."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.opset = model.opset_imports.get("", 1)
        self.known: dict[ir.Value, Array] = {}
        self.made: list[ir.Node] = []
        self.paying: dict[ir.Value, int] = {}
        self.growth: int = model.meta.get(_GROWN, 0)
        self.limit: int = model.meta.get(LIMIT, GROWTH)

    def visit(self, node: ir.Node) -> None:
        """Compute the outputs of `node`, if they can be told."""
        if node.domain:
            return
        found = self._by_shape(node) if node.op_type in _BY_SHAPE else None
        if found is None:
            for value in node.inputs:
                if value is not None and value not in self.known and _held(value) is None:
                    return
            if not node.inputs or not foldable(node) or _named(node):
                return
            found = self._computed(node)
        if found is not None and all(
            value.dtype is None or value.dtype.numpy() == made.dtype
            for value, made in zip(node.outputs, found, strict=True)
        ):
            self.known.update(zip(node.outputs, found, strict=True))
            self.made.append(node)

    def _by_shape(self, node: ir.Node) -> list[Array] | None:
        """What a node computes from the shape or the type of its input alone."""
        value = node.inputs[0] if node.inputs else None
        if node.op_type in ("Shape", "Size") and value is not None:
            if value.shape is None or not value.shape.is_static():
                return None
            dims = np.array(value.shape.numpy(), np.int64)
            if node.op_type == "Size":
                return [np.asarray(dims.prod())]
            return [dims[attribute(node, "start", 0) : attribute(node, "end", len(dims))]]
        if node.op_type == "CastLike" and value is not None:
            like = node.inputs[1].dtype if node.inputs[1] is not None else None
            x = self._array(value)
            if like is not None and x is not None:
                try:
                    return [cast(x, like)]
                except Unfoldable:
                    return None
        return None

    def _computed(self, node: ir.Node) -> list[Array] | None:
        try:
            return compute(node, [self._array(value) for value in node.inputs], self.opset)
        except Unfoldable:
            return None

    def _array(self, value: ir.Value | None) -> Array | None:
        if value is None:
            return None
        if value in self.known:
            return self.known[value]
        held = _held(value)
        return None if held is None else held.numpy()

    def write(self, skip: Skip) -> int:
        """Make initializers of the results that are read by something else; return the number of nodes removed."""
        going = set(self.made)
        for node in reversed(self.made):
            needed = [
                value
                for value in node.outputs
                if value.is_graph_output() or any(use.node not in going for use in value.uses())
            ]
            if _named(node) or (len(node.outputs) > 1 and any(value.is_graph_output() for value in needed)):
                going.remove(node)
                continue
            for value in needed:
                if not self._affordable(value, going):
                    skip(node, f"its result of {self.known[value].nbytes:,} bytes would make the model larger")
                    going.remove(node)
                    break
        self.model.meta[_GROWN] = self.growth
        folded = [node for node in self.made if node in going]
        removed: defaultdict[ir.Graph, list[ir.Node]] = defaultdict(list)
        for node in folded:
            for value in node.outputs:
                self._settle(value, going)
            if node.graph is not None:
                removed[node.graph].append(node)
        # Inner graphs come later and read from outer ones, so they go first.
        for graph, gone in reversed(removed.items()):
            graph.remove(gone, safe=True)
        return len(folded)

    def _affordable(self, value: ir.Value, folded: set[ir.Node]) -> bool:
        """Whether the result may be kept: weights that go pay for it, or it is small and no second copy of one that
        stays. Takes the bytes as spent."""
        size = self.known[value].nbytes
        if size > TINY:
            sources = self._sources(value)
            going = [one for one in sources if not one.is_graph_output() and all(u.node in folded for u in one.uses())]
            for source in going:
                self.paying.setdefault(source, sources[source])
            if sum(self.paying[source] for source in going) >= size:
                for source in going:
                    spent = min(size, self.paying[source])
                    self.paying[source] -= spent
                    size -= spent
                return True
            if size > SMALL or any(sources[one] >= size for one in sources.keys() - going):
                return False
        if self.growth + size > self.limit:
            return False
        self.growth += size
        return True

    def _sources(self, value: ir.Value) -> dict[ir.Value, int]:
        """The constants that a result is computed from -> their bytes."""
        sources: dict[ir.Value, int] = {}
        stack, seen = [value], set()
        while stack:
            one = stack.pop()
            if one in seen:
                continue
            seen.add(one)
            node = one.producer()
            if node is not None and node.op_type != "Constant":
                stack += [each for each in node.inputs if each is not None]
                continue
            held = _held(one)
            sources[one] = held.nbytes if held is not None else 0
        return sources

    def _settle(self, value: ir.Value, going: set[ir.Node]) -> None:
        """Put an initializer in the place of `value` for those that go on reading it."""
        if not value.is_graph_output() and all(use.node in going for use in value.uses()):
            return
        held = self.known[value]
        if not held.flags.c_contiguous and held.nbytes <= SMALL:
            held = held.copy()  # a larger one stays a view of what is mapped from the file
        new = constant(self.model, value.name or "constant", held)
        if value.is_graph_output():
            node = value.producer()
            assert node is not None
            new.name = f"{new.name}_value"
            replace(node, "Identity", [new])
            return
        value.replace_all_uses_with(new)


def _held(value: ir.Value) -> ir.TensorProtocol | None:
    """What a constant holds that nothing can override; None for strings."""
    held = tensor(value)
    return None if held is None or held.dtype == ir.DataType.STRING else held


def _named(node: ir.Node) -> bool:
    """Whether a node only gives a constant the name of an output."""
    return node.op_type in ("Constant", "Identity") and any(value.is_graph_output() for value in node.outputs)
