"""The shapes that nodes give their outputs, as numbers that depend on sizes: where inference makes up names."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from aot.graph.shapes import ALIKE
from aot.passes._edit import EVERYTHING, array, attribute, dims
from aot.passes._layouts import REDUCTIONS
from aot.passes._symbols import Polynomial, at_least, atom, quotient

if TYPE_CHECKING:
    from aot.passes._contents import Contents

Number = int | Polynomial


def target(contents: Contents, node: ir.Node) -> list[Number] | None:
    """The shape that a Reshape gives its input, without 0 and -1."""
    before, wanted = contents.dims(node.inputs[0]), contents.of(node.inputs[1] if len(node.inputs) > 1 else None)
    if before is None or wanted is None or wanted.ndim != 1:
        return None
    copied = not attribute(node, "allowzero", 0)
    if copied and any(dim == 0 and at >= len(before) for at, dim in enumerate(wanted)):
        return None
    found = [before[at] if copied and dim == 0 else dim for at, dim in enumerate(wanted)]
    if -1 in found:
        at = found.index(-1)
        rest: Number = math.prod(dim for dim in found if dim != -1)
        total: Number = math.prod(before)
        left = quotient(total, rest) if rest != 0 else None
        found[at] = left if left is not None else atom(f"!{node.outputs[0].name}:{at}")
    return found


def broadcast(shapes: Sequence[Sequence[Number]]) -> list[Number] | None:
    """The shape that all broadcast to; a dim that may be 1 in one and more in another is not known."""
    rank = max(map(len, shapes))
    found: list[Number] = []
    for sizes in zip(*((1,) * (rank - len(shape)) + tuple(shape) for shape in shapes), strict=True):
        wide = {size for size in sizes if size != 1}
        fixed = [size for size in wide if isinstance(size, int)]
        if len(wide) > 1 and not fixed:
            return None
        found.append(fixed[0] if fixed else next(iter(wide), 1))
    return found


def _elementwise(contents: Contents, node: ir.Node) -> list[Number] | None:
    after = dims(node.outputs[0])
    if after is not None and all([_adds_nothing(dims(value), after) for value in node.inputs]):
        return None
    shapes = [shape for value in node.inputs if (shape := contents.dims(value)) is not None]
    return broadcast(shapes) if len(shapes) == len(node.inputs) else None


def _adds_nothing(before: Sequence[object] | None, after: Sequence[object]) -> bool:
    """Whether a shape tells no more of what it is broadcast to than is known."""
    if before == after or before is None:
        return True
    return all([a == 1 or a == b for a, b in zip(reversed(before), reversed(after), strict=False)])


def _expanded(contents: Contents, node: ir.Node) -> list[Number] | None:
    before, wanted = contents.dims(node.inputs[0]), contents.of(node.inputs[1])
    return None if before is None or wanted is None else broadcast([before, list(wanted)])


def _filled(contents: Contents, node: ir.Node) -> list[Number] | None:
    wanted = contents.of(node.inputs[0])
    return None if wanted is None else list(wanted)


def _counted(contents: Contents, node: ir.Node) -> list[Number] | None:
    start, limit, step = (contents.of(value) for value in node.inputs)
    if start is None or limit is None or step is None or step.item() != 1:
        return None
    count = limit.item() - start.item()
    return [count] if (at_least(count) or 0) >= 0 and at_least(count) is not None else None


def _joined(contents: Contents, node: ir.Node) -> list[Number] | None:
    shapes = [shape for value in node.inputs if (shape := contents.dims(value)) is not None]
    if len(shapes) != len(node.inputs):
        return None
    axis = attribute(node, "axis") % len(shapes[0])
    total: Number = 0
    for shape in shapes:
        total = total + shape[axis]
    return [*shapes[0][:axis], total, *shapes[0][axis + 1 :]]


def _sliced(contents: Contents, node: ir.Node) -> list[Number] | None:
    found, given = contents.dims(node.inputs[0]), [contents.of(value) for value in node.inputs[1:]]
    if found is None or len(given) < 2 or any(held is None for held in given):
        return None
    if any(isinstance(one, Polynomial) for held in given if held is not None for one in held.flat):
        return None
    starts, ends, axes, steps = [*(held.tolist() for held in given if held is not None), None, None][:4]
    for at, axis in enumerate(range(len(starts)) if axes is None else axes):
        size, step = found[axis], 1 if steps is None else steps[at]
        if isinstance(size, int):
            found[axis] = len(range(size)[starts[at] : ends[at] : step])
        elif (starts[at], step) != (0, 1) or ends[at] < EVERYTHING:
            return None
    return found


def _tiled(contents: Contents, node: ir.Node) -> list[Number] | None:
    before, times = contents.dims(node.inputs[0]), contents.of(node.inputs[1])
    return None if before is None or times is None else [a * b for a, b in zip(before, times, strict=True)]


def _padded(contents: Contents, node: ir.Node) -> list[Number] | None:
    before = contents.dims(node.inputs[0])
    pads = contents.of(node.inputs[1]) if len(node.inputs) > 1 else None
    if before is None or pads is None or len(pads) != 2 * len(before):
        return None
    return [dim + pads[at] + pads[at + len(before)] for at, dim in enumerate(before)]


def _turned(contents: Contents, node: ir.Node) -> list[Number] | None:
    before = contents.dims(node.inputs[0])
    return None if before is None else [before[axis] for axis in attribute(node, "perm", range(len(before))[::-1])]


def _multiplied(contents: Contents, node: ir.Node) -> list[Number] | None:
    a, b = contents.dims(node.inputs[0]), contents.dims(node.inputs[1])
    if a is None or b is None or min(len(a), len(b)) < 2:
        return None
    outer = broadcast([a[:-2], b[:-2]])
    return None if outer is None else [*outer, a[-2], b[-1]]


def _alike(contents: Contents, node: ir.Node) -> list[Number] | None:
    return contents.dims(node.inputs[0])


def _reduced(contents: Contents, node: ir.Node) -> list[Number] | None:
    before, axes = contents.dims(node.inputs[0]), _axes(node)
    if before is None or axes is None or (not axes and attribute(node, "noop_with_empty_axes", 0)):
        return None
    gone = {axis % len(before) for axis in axes} if axes else set(range(len(before)))
    if attribute(node, "keepdims", 1):
        return [1 if at in gone else size for at, size in enumerate(before)]
    return [size for at, size in enumerate(before) if at not in gone]


def _squeezed(contents: Contents, node: ir.Node) -> list[Number] | None:
    before, axes = contents.dims(node.inputs[0]), _axes(node)
    if before is None or not axes:
        return None
    gone = {axis % len(before) for axis in axes}
    return [size for at, size in enumerate(before) if at not in gone]


def _unsqueezed(contents: Contents, node: ir.Node) -> list[Number] | None:
    before, axes = contents.dims(node.inputs[0]), _axes(node)
    if before is None or axes is None:
        return None
    rank, rest = len(before) + len(axes), iter(before)
    new = {axis % rank for axis in axes}
    return [1 if at in new else next(rest) for at in range(rank)]


def _axes(node: ir.Node) -> list[int] | None:
    """The axes that an attribute or the second input names; empty where neither is there, None where computed."""
    if len(node.inputs) < 2 or node.inputs[1] is None:
        return list(attribute(node, "axes", ()))
    given = array(node.inputs[1])
    return None if given is None else [int(axis) for axis in given.reshape(-1)]


def _told(contents: Contents, node: ir.Node) -> list[Number] | None:
    known = contents.dims(node.inputs[0])
    return None if known is None else [len(known[attribute(node, "start", 0) : attribute(node, "end", len(known))])]


SHAPES: dict[str, Callable[[Contents, ir.Node], list[Number] | None]] = {
    "Reshape": target,
    "Expand": _expanded,
    "ConstantOfShape": _filled,
    "Range": _counted,
    "Concat": _joined,
    "Shape": _told,
    "Slice": _sliced,
    "Tile": _tiled,
    "Pad": _padded,
    "Transpose": _turned,
    "MatMul": _multiplied,
    "Squeeze": _squeezed,
    "Unsqueeze": _unsqueezed,
    **dict.fromkeys(REDUCTIONS, _reduced),
    **dict.fromkeys((*ALIKE, "Cast", "LayerNormalization"), _alike),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Where", "Equal", "And", "Or", "Pow", "Max", "Min"), _elementwise),
}
