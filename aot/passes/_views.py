"""What views (Reshape, Transpose, Squeeze, Unsqueeze) do to a tensor, as an order of the factors of its dims."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from aot.passes._edit import Dim, array, attribute, constant, dims, made_by, only_user, opset

VIEWS = ("Reshape", "Transpose", "Squeeze", "Unsqueeze")
_PRODUCT = re.compile(r"(?:(\d+)\*)?([A-Za-z_]\w*)(?:\*(\d+))?")


class Size(NamedTuple):
    """number · the product of the symbols, which are sorted: the size of a dim, or of a part of one."""

    number: int = 1
    symbols: tuple[str, ...] = ()

    def __mul__(self, other: Size) -> Size:  # type: ignore[override]
        symbols = self.symbols or other.symbols
        if self.symbols and other.symbols:
            symbols = tuple(sorted((*self.symbols, *other.symbols)))
        return Size(self.number * other.number, symbols)

    def over(self, other: Size) -> Size | None:
        """The quotient, None where it is not known to be whole."""
        left = list(self.symbols)
        for symbol in other.symbols:
            if symbol not in left:
                return None
            left.remove(symbol)
        whole = other.number > 0 and self.number > 0 and self.number % other.number == 0
        return Size(self.number // other.number, tuple(left)) if whole else None

    @staticmethod
    @lru_cache(maxsize=4096)
    def of(dim: Dim) -> Size | None:
        """`7`, `B`, `64*B`; any other expression is a symbol of its own, for the same text means the same number."""
        if dim is None or isinstance(dim, int):
            return Size(dim) if dim else None
        product = _PRODUCT.fullmatch(dim.replace(" ", ""))
        if product is None:
            return Size(1, (dim,))
        before, symbol, after = product.groups()
        return Size(int(before or after or 1), (symbol,))

    @property
    def dim(self) -> Dim:
        """As a shape holds it; None for a product that no name says."""
        if not self.symbols:
            return self.number
        if len(self.symbols) > 1:
            return None
        return self.symbols[0] if self.number == 1 else f"{self.number}*{self.symbols[0]}"


ONE = Size()


@dataclass
class Layout:
    """What a chain of views does. The elements are indexed by factors (`sizes`, by number): `before` are the dims of
    the source and `after` those of the result, each as its factors, outermost first. A dim of size 1 has none.
    """

    sizes: dict[int, Size]
    before: list[list[int]]
    after: list[list[int]]
    _fresh: count[int] = field(default_factory=lambda: count(1000))

    @classmethod
    def of(cls, shape: Sequence[Dim] | None) -> Layout | None:
        """The layout in which nothing has moved; None where a dim is not known, or empty."""
        found = [Size.of(dim) for dim in shape] if shape is not None else [None]
        if None in found:
            return None
        sizes = {at: size for at, size in enumerate(found) if size is not None and size != ONE}
        kept = [[at] if at in sizes else [] for at in range(len(found))]
        return cls(sizes, kept, [list(dim) for dim in kept])

    def size(self, dim: Sequence[int]) -> Size:
        """The product of factors."""
        if not dim:
            return ONE
        product = self.sizes[dim[0]]
        for factor in dim[1:]:
            product *= self.sizes[factor]
        return product

    def apply(self, node: ir.Node) -> bool:
        """Follow one view; False where it cannot be followed, which leaves the layout of no use."""
        if node.op_type == "Transpose":
            order = attribute(node, "perm", tuple(reversed(range(len(self.after)))))
            self.after = [self.after[axis] for axis in order]
            return True
        if node.op_type == "Reshape":
            target = array(node.inputs[1])
            if target is not None:
                return self._reshape(target.tolist(), bool(attribute(node, "allowzero", 0)))
            result = Layout.of(dims(node.outputs[0]))
            return result is not None and self._regroup([result.size(dim) for dim in result.after])
        axes = array(node.inputs[1]) if len(node.inputs) > 1 else np.array(attribute(node, "axes", ()))
        if axes is None or not axes.size:
            return False
        if node.op_type == "Squeeze":
            gone = {int(axis) % len(self.after) for axis in axes.reshape(-1)}
            kept = [dim for at, dim in enumerate(self.after) if at not in gone]
            if any(self.after[at] for at in gone):
                return False
        else:
            rest, rank = iter(self.after), len(self.after) + axes.size
            added = {int(axis) % rank for axis in axes.reshape(-1)}
            kept = [[] if at in added else next(rest) for at in range(rank)]
        self.after = kept
        return True

    def _reshape(self, target: list[int], allowzero: bool) -> bool:
        if 0 in target and (allowzero or len(target) > len(self.after) + target[::-1].index(0)):
            return False
        wanted = [self.size(self.after[at]) if n == 0 else Size(n) for at, n in enumerate(target)]
        if -1 in target:
            at, rest = target.index(-1), self.size([factor for dim in self.after for factor in dim])
            for other, size in enumerate(wanted):
                divided = rest if other == at else rest.over(size)
                if divided is None:
                    return False
                rest = divided
            wanted[at] = rest
        return self._regroup(wanted)

    def _regroup(self, wanted: list[Size]) -> bool:
        """Make `after` dims of those sizes, out of the factors in their order, splitting where a border falls."""
        left = [factor for dim in self.after for factor in dim]
        result: list[list[int]] = []
        for size in reversed(wanted):
            dim: list[int] = []
            while size != ONE:
                if not left:
                    return False
                last = left.pop()
                rest = size.over(self.sizes[last])
                if rest is None:
                    outer = self.sizes[last].over(size)
                    if outer is None:
                        return False
                    first, last = self.split(last, outer, size)
                    left.append(first)
                    rest = ONE
                dim.insert(0, last)
                size = rest
            result.insert(0, dim)
        self.after = result
        return not left

    def split(self, factor: int, outer: Size, inner: Size) -> tuple[int, int]:
        """Make two factors of one."""
        first, second = next(self._fresh), next(self._fresh)
        self.sizes[first], self.sizes[second] = outer, inner
        for side in (self.before, self.after):
            for dim in side:
                if factor in dim:
                    at = dim.index(factor)
                    dim[at : at + 1] = [first, second]
        return first, second


@dataclass(frozen=True)
class Step:
    """One view: `Reshape` to sizes, or `Transpose` by an order."""

    op: str
    sizes: tuple[Size, ...] = ()
    order: tuple[int, ...] = ()


def shortest(layout: Layout) -> list[Step]:
    """The fewest steps that do what the layout says: a Transpose, with a Reshape before or after it or both.

    Of two that are equally few, the Reshape comes first, as attention is written: channels into heads, heads forward.
    """
    before = tuple(layout.size(dim) for dim in layout.before)
    after = tuple(layout.size(dim) for dim in layout.after)
    was, now = ([factor for dim in side for factor in dim] for side in (layout.before, layout.after))
    if was == now:
        return [] if before == after else [Step("Reshape", after)]
    options: list[list[Step]] = []
    back = _order(layout.after, was, layout.before)
    if back is not None:
        split = tuple(after[axis] for axis in back)
        turn = tuple(back.index(axis) for axis in range(len(back)))
        options.append([*([] if split == before else [Step("Reshape", split)]), Step("Transpose", order=turn)])
    order = _order(layout.before, now, layout.after)
    if order is not None:
        moved = tuple(before[axis] for axis in order)
        options.append([Step("Transpose", order=order), *([] if moved == after else [Step("Reshape", after)])])
    runs = _runs(was, now)
    source = sorted(runs, key=lambda run: was.index(run[0]))
    turn = tuple(source.index(run) for run in runs)
    sizes = tuple(layout.size(run) for run in source)
    options.append([Step("Reshape", sizes), Step("Transpose", order=turn), Step("Reshape", after)])
    return min(options, key=len)


def _order(side: list[list[int]], factors: list[int], other: list[list[int]]) -> tuple[int, ...] | None:
    """The order of the dims of `side` in which their factors are in that order; None where that takes them apart.

    Dims of size 1 may go anywhere: they go where `other` has such dims, and the rest of them to the end.
    """
    filled = sorted((at for at, dim in enumerate(side) if dim), key=lambda at: factors.index(side[at][0]))
    if [factor for at in filled for factor in side[at]] != factors:
        return None
    spare, order = [at for at, dim in enumerate(side) if not dim], list[int]()
    for dim in other:
        if not dim:
            order += [spare.pop(0)] if spare else []
            continue
        while filled and side[filled[0]][0] in dim:
            order.append(filled.pop(0))
    return (*order, *spare)


def _runs(was: list[int], now: list[int]) -> list[list[int]]:
    """The factors in their new order, those together that are neighbours in the old one as well."""
    runs: list[list[int]] = []
    for factor in now:
        at = was.index(factor)
        if runs and at and runs[-1][-1] == was[at - 1]:
            runs[-1].append(factor)
        else:
            runs.append([factor])
    return runs


def chain(last: ir.Node) -> list[ir.Node]:
    """The views that end in `last`, first to last; each but the last is read by the next alone."""
    found = [last]
    while True:
        before = found[0].inputs[0]
        node = made_by(before, *VIEWS)
        if node is None or before is None or only_user(before) is not found[0] or node.graph is not last.graph:
            return found
        found.insert(0, node)


def told(before: Sequence[Size], after: Sequence[Size]) -> tuple[str, list[int]] | None:
    """The op that brings one shape into the other, and what it is told; None where a Reshape cannot be told.

    Squeeze or Unsqueeze, where dims of size 1 are all there is to it, for they need no sizes. Else a Reshape, with 0
    where a dim is the same at the same place, and one -1.
    """
    for op, few, many in (("Unsqueeze", before, after), ("Squeeze", after, before)):
        axes, left = [], list(few)
        for at, size in enumerate(many):
            if left and left[0] == size:
                left.pop(0)
            elif size == ONE:
                axes.append(at)
            else:
                break
        else:
            if not left and axes:
                return op, axes
    target = [
        size.number if not size.symbols else 0 if at < len(before) and before[at] == size else -1
        for at, size in enumerate(after)
    ]
    return ("Reshape", target) if target.count(-1) < 2 else None


class View(NamedTuple):
    """A step as a node says it: the op, the numbers that it is told, and the sizes that it leaves."""

    op: str
    numbers: list[int]
    sizes: list[Size]


def views(layout: Layout) -> list[View] | None:
    """The fewest views that do what the layout says; None where a size in between cannot be told."""
    shape = [layout.size(dim) for dim in layout.before]
    found: list[View] = []
    for step in shortest(layout):
        if step.op == "Transpose":
            shape = [shape[axis] for axis in step.order]
            found.append(View("Transpose", list(step.order), shape))
            continue
        reshape = told(shape, step.sizes)
        if reshape is None:
            return None
        shape = list(step.sizes)
        found.append(View(*reshape, shape))
    return found


def arguments(
    model: ir.Model, view: View, source: ir.Value, name: str
) -> tuple[list[ir.Value], dict[str, Sequence[int]]]:
    """The inputs and attributes of the node that is `view` of `source`."""
    if view.op == "Transpose":
        return [source], {"perm": view.numbers}
    if view.op != "Reshape" and opset(model) < 13:
        return [source], {"axes": view.numbers}
    return [source, constant(model, f"{name}_{view.op.lower()}", np.array(view.numbers, np.int64))], {}


def insert(model: ir.Model, found: Sequence[View], source: ir.Value, reader: ir.Node, name: str) -> ir.Value:
    """Apply views to `source`, in front of `reader`; their values are called after `name`."""
    assert reader.graph is not None
    value = source
    for number, view in enumerate(found):
        own = f"{name}_{view.op}{number}"
        node = ir.node(view.op, *arguments(model, view, value, own), name=own)
        node.metadata_props.update(reader.metadata_props)
        result = node.outputs[0]
        result.name, result.type = own, source.type
        result.shape = ir.Shape([size.dim for size in view.sizes])
        reader.graph.insert_before(reader, node)
        value = result
    return value
