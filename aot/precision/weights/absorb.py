"""Dividing a tensor by a factor of its own for each channel, exactly: what computes it takes the factor in.

The factor is followed from the tensor towards what computes it, through operators that are linear in the value
(shape changes, poolings, products and quotients) or commute with a positive factor (Relu), until constants are found
that can be divided instead: the weight and bias of a layer, the scale and bias of a normalization, a constant that
is multiplied. Readers multiply their weights by the factor in return, so the function of the graph stays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import mul as multiply
from typing import Any

import numpy as np
import onnx_ir as ir

from aot.precision.reading import attribute, constant, consumers, is_constant

Array = np.ndarray[Any, Any]

# Where a constant keeps what it was made of: several factors are multiplied before it is rounded once.
_RESCALED = "aot.rescaled"
# A constant of more elements that something else reads too is not copied.
_COPIED = 1 << 16
_SAME = frozenset({"Identity", "Relu", "LeakyRelu"})
_POOLS = frozenset({"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"})
_VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
# The axis of the channels that scale and bias, inputs 1 and 2, belong to.
_NORMS = {
    "LayerNormalization": -1,
    "RMSNormalization": -1,
    "InstanceNormalization": 1,
    "GroupNormalization": 1,
    "BatchNormalization": 1,
}


class Unabsorbed(Exception):
    """Nothing takes the factor in; the text says what is in the way."""


@dataclass
class Absorption:
    """edits: (node, input) -> the array that the constant there is divided by. divided: every value that is divided
    by a factor on the way, with the factor, shaped as it broadcasts over the value."""

    edits: dict[tuple[ir.Node, int], Array] = field(default_factory=dict)
    divided: dict[ir.Value, Array] = field(default_factory=dict)


def absorb(value: ir.Value, factor: Array, readers: Collection[ir.Node]) -> Absorption:
    """How `value` can be divided by `factor`, whose shape has the value's rank. `readers` are prepared for it.

    Changes nothing. Raises Unabsorbed where the value cannot be.
    """
    found = Absorption()
    _divide(value, factor, readers, found)
    return found


def carry_out(found: Absorption) -> None:
    """Divide the constants."""
    for (node, index), factor in found.edits.items():
        rescale(node, index, factor, divide=True)


def rescale(node: ir.Node, index: int, factor: Array, *, divide: bool = False) -> None:
    """Let input `index` of the node, a constant, be multiplied (or divided) by `factor`, which broadcasts over it.

    Computed when the constant is read, so memory holds one weight at a time; a constant that others read is copied.
    """
    value = node.inputs[index]
    assert value is not None
    assert value.const_value is not None
    assert isinstance(node.graph, ir.Graph)
    source, factors = value.meta.get(_RESCALED, (value.const_value, ()))
    factors = _joined(factors, np.asarray(1 / factor if divide else factor, np.float64))
    name = str(value.name)
    if len(value.uses()) > 1 or value.is_graph_output():
        name = unique(node.graph, f"{name}_{node.name}")
    else:
        del node.graph.initializers[name]
    shape = ir.Shape(np.broadcast_shapes(source.shape.numpy(), *(f.shape for f in factors)))

    def make() -> ir.TensorProtocol:
        return ir.tensor(reduce(multiply, factors, source.numpy()).astype(np.float32), name=name)

    scaled = ir.Value(name=name, shape=shape, type=ir.TensorType(ir.DataType.FLOAT))
    scaled.const_value = ir.LazyTensor(make, ir.DataType.FLOAT, shape, name=name)
    scaled.meta[_RESCALED] = (source, factors)
    node.graph.register_initializer(scaled)
    node.replace_input_with(index, scaled)


def _joined(factors: tuple[Array, ...], factor: Array) -> tuple[Array, ...]:
    """One factor more; those of one shape become one, so that a row and a column never become a matrix."""
    for i, known in enumerate(factors):
        if known.shape == factor.shape:
            return (*factors[:i], known * factor, *factors[i + 1 :])
    return (*factors, factor)


def unique(graph: ir.Graph, base: str) -> str:
    """A name that no initializer has."""
    name, count = base, 1
    while name in graph.initializers:
        name, count = f"{base}_{count}", count + 1
    return name


def along(factor: Array, axis: int) -> Array | None:
    """The factor as one number for each index of that axis; None where it differs along another."""
    if any(size != 1 for i, size in enumerate(factor.shape) if i != axis % factor.ndim):
        return None
    return factor.reshape(-1)


def editable(value: ir.Value | None) -> bool:
    """Whether the value is a constant that may be replaced for one reader."""
    if not is_constant(value) or value is None or value.const_value is None:
        return False
    alone = len(value.uses()) == 1 and not value.is_graph_output()
    return value.dtype == ir.DataType.FLOAT and (alone or value.const_value.size <= _COPIED)


def _divide(value: ir.Value, factor: Array, readers: Collection[ir.Node], found: Absorption) -> None:
    if value.is_graph_output():
        raise Unabsorbed(f"{value.name} is an output of the graph")
    other = next((n for n in consumers(value) if n not in readers), None)
    if other is not None:
        raise Unabsorbed(f"{value.name} is also read by {other.op_type} {other.name}")
    node = value.producer()
    if node is None:
        raise Unabsorbed(f"{value.name} is an input of the graph")
    step = _STEPS.get(node.op_type) if node.domain == "" else None
    if step is None or (value is not node.outputs[0] and node.op_type != "Split"):
        raise Unabsorbed(f"{value.name} comes out of {node.op_type} {node.name}, which is not linear for each channel")
    found.divided[value] = factor
    step(node, value, factor, found)


def _on(node: ir.Node, index: int, factor: Array, found: Absorption) -> None:
    """Divide what the node reads there instead."""
    value = node.inputs[index]
    assert value is not None
    _divide(value, factor, (node,), found)


def _edit(node: ir.Node, index: int, factor: Array, found: Absorption) -> None:
    """Divide a constant of the node, if it has one there."""
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None:
        return
    if not editable(value):
        raise Unabsorbed(f"{value.name}, which {node.op_type} {node.name} reads, is no constant of its own")
    found.edits[node, index] = factor


def _channel(node: ir.Node, factor: Array, axis: int) -> Array:
    one = along(factor, axis)
    if one is None:
        raise Unabsorbed(f"the channels are not those of {node.op_type} {node.name}")
    return one


def _same(node: ir.Node, value: ir.Value, factor: Array, found: Absorption) -> None:
    _on(node, 0, factor, found)


def _clip(node: ir.Node, value: ir.Value, factor: Array, found: Absorption) -> None:
    """max(x, 0) commutes with a positive factor, a bound that is not 0 does not."""
    bounds = [constant(v) if v is not None else None for v in (*node.inputs[1:], None, None)[:2]]
    given = [v is not None for v in (*node.inputs[1:], None, None)[:2]]
    low, high = (None if b is None else float(b.reshape(-1)[0]) for b in bounds)
    if (given[0] and low not in (0.0, -np.inf)) or (given[1] and high not in (np.inf,)):
        raise Unabsorbed(f"Clip {node.name} lies between, whose bounds do not scale with its input")
    _on(node, 0, factor, found)


def _pool(node: ir.Node, value: ir.Value, factor: Array, found: Absorption) -> None:
    if any(size != 1 for size in factor.shape[2:]):
        raise Unabsorbed(f"{node.op_type} {node.name} joins the channels")
    _on(node, 0, factor, found)


def _view(node: ir.Node, value: ir.Value, factor: Array, found: Absorption) -> None:
    """The factor differs along trailing dims only; where the same ones were before the view, with the same number of
    elements, it is the same numbers in another shape."""
    before, after = _dims(node.inputs[0]), _dims(value)
    span = factor.ndim - next((i for i, size in enumerate(factor.shape) if size != 1), factor.ndim)
    for count in range(span, len(after) + 1):
        trailing = after[len(after) - count :]
        if None in trailing:
            break
        size = int(np.prod([t for t in trailing if t is not None], dtype=np.int64))
        for other in range(len(before) + 1):
            tail = [d for d in before[len(before) - other :] if d is not None]
            if len(tail) == other and int(np.prod(tail, dtype=np.int64)) == size:
                full = np.broadcast_to(factor.reshape(factor.shape[factor.ndim - count :]), trailing)  # type: ignore[arg-type]
                shaped = full.reshape((1,) * (len(before) - other) + tuple(tail))
                _on(node, 0, _thinned(shaped), found)
                return
    raise Unabsorbed(f"{node.op_type} {node.name} mixes the channels with other dims")


def _thinned(factor: Array) -> Array:
    """Without the axes along which it is constant."""
    for axis in range(factor.ndim):
        first = factor.take([0], axis)
        if factor.shape[axis] > 1 and bool((factor == first).all()):
            factor = first
    return factor


def _dims(value: ir.Value | None) -> list[int | None]:
    if value is None or value.shape is None:
        raise Unabsorbed(f"the shape of {value.name if value else 'an input'} is not known")
    return [d if isinstance(d, int) else None for d in value.shape]


def _transpose(node: ir.Node, value: ir.Value, factor: Array, found: Absorption) -> None:
    order = node.attributes.get("perm")
    axes = list(order.as_ints()) if order is not None else list(range(factor.ndim))[::-1]
    _on(node, 0, factor.transpose(np.argsort(axes)), found)


def _split(node: ir.Node, value: ir.Value, factor: Array, found: Absorption) -> None:
    """The other parts are divided by 1."""
    axis = attribute(node, "axis", 0) % factor.ndim
    sizes = [_dims(part)[axis] for part in node.outputs]
    parts = []
    for part, size in zip(node.outputs, sizes, strict=True):
        if size is None:
            raise Unabsorbed(f"the sizes of Split {node.name} are not known")
        own = factor if part is value else np.ones((1,) * factor.ndim)
        shape = tuple(
            size if i == axis else own.shape[i] if part is value else factor.shape[i] for i in range(own.ndim)
        )
        parts.append(np.broadcast_to(own, shape))
    _on(node, 0, np.concatenate(parts, axis), found)


def _add(node: ir.Node, value: ir.Value, factor: Array, found: Absorption) -> None:
    constants = [i for i, v in enumerate(node.inputs) if is_constant(v)]
    if len(constants) != 1:
        raise Unabsorbed(f"{value.name} is the sum of two computed tensors, {node.op_type} {node.name}")
    _edit(node, constants[0], _trimmed(factor, node.inputs[constants[0]]), found)
    _on(node, 1 - constants[0], _fitting(factor, node.inputs[1 - constants[0]]), found)


def _trimmed(factor: Array, like: ir.Value | None) -> Array:
    """Without leading axes of size 1 that a constant does not have either."""
    rank = 0 if like is None or like.const_value is None else len(like.const_value.shape)
    while factor.ndim > rank and factor.shape[0] == 1:
        factor = factor[0]
    return factor


def _fitting(factor: Array, value: ir.Value | None) -> Array:
    """The factor in the rank of an operand that broadcasts."""
    dims = _dims(value)
    lead = factor.ndim - len(dims)
    if any(size != 1 for size in factor.shape[:lead]):
        raise Unabsorbed(f"{value.name if value else ''} is broadcast along the channels")
    shaped = factor.reshape(factor.shape[lead:])
    if any(size not in (1, dim) for size, dim in zip(shaped.shape, dims, strict=True)):
        raise Unabsorbed(f"{value.name if value else ''} is broadcast along the channels")
    return shaped


def _mul(node: ir.Node, value: ir.Value, factor: Array, found: Absorption) -> None:
    """One of the two factors is divided: a constant for each channel at once, else what can be."""
    left, right = node.inputs
    if left is right:
        raise Unabsorbed(f"{value.name} is a square")
    for index, operand in enumerate(node.inputs):
        array = constant(operand) if editable(operand) else None
        if array is not None and array.size > 1:
            _edit(node, index, _trimmed(factor, operand), found)
            return
    why = []
    for index in (1, 0):
        if is_constant(node.inputs[index]):
            continue
        attempt = Absorption()
        try:
            _on(node, index, _fitting(factor, node.inputs[index]), attempt)
        except Unabsorbed as reason:
            why.append(str(reason))
            continue
        found.edits.update(attempt.edits)
        found.divided.update(attempt.divided)
        return
    raise Unabsorbed(why[0])


def _div(node: ir.Node, value: ir.Value, factor: Array, found: Absorption) -> None:
    _on(node, 0, _fitting(factor, node.inputs[0]), found)


def _norm(node: ir.Node, value: ir.Value, factor: Array, found: Absorption) -> None:
    axis = _NORMS[node.op_type]
    if axis == -1 and attribute(node, "axis", -1) not in (-1, factor.ndim - 1):
        raise Unabsorbed(f"{node.op_type} {node.name} is over several axes")
    one = _channel(node, factor, axis)
    size = node.inputs[1].const_value.size if editable(node.inputs[1]) else 0  # type: ignore[union-attr]
    if size != one.size:  # before opset 21 GroupNormalization has one number a group
        raise Unabsorbed(f"{node.op_type} {node.name} has no scale for each channel")
    _edit(node, 1, one, found)
    _edit(node, 2, one, found)


def _matmul(node: ir.Node, value: ir.Value, factor: Array, found: Absorption) -> None:
    right = node.inputs[1]
    if is_constant(right):
        if len(_dims(right)) != 2:
            raise Unabsorbed(f"the weight of MatMul {node.name} is not a matrix")
        _edit(node, 1, _channel(node, factor, -1), found)
    elif factor.ndim >= 2 and factor.shape[-2] == 1:
        _on(node, 1, _fitting(factor, right), found)
    elif factor.shape[-1] == 1:
        _on(node, 0, _fitting(factor, node.inputs[0]), found)
    else:
        raise Unabsorbed(f"the channels are not those of MatMul {node.name}")


def _gemm(node: ir.Node, value: ir.Value, factor: Array, found: Absorption) -> None:
    one = _channel(node, factor, -1)
    _edit(node, 1, one[:, None] if attribute(node, "transB", 0) else one, found)
    _edit(node, 2, one, found)


def _conv(node: ir.Node, value: ir.Value, factor: Array, found: Absorption) -> None:
    one = _channel(node, factor, 1)
    rank = len(_dims(node.inputs[1]))
    if node.op_type == "Conv":
        _edit(node, 1, one.reshape(-1, *(1,) * (rank - 1)), found)
    elif attribute(node, "group", 1) == 1:
        _edit(node, 1, one.reshape(1, -1, *(1,) * (rank - 2)), found)
    else:
        raise Unabsorbed(f"ConvTranspose {node.name} has groups")
    _edit(node, 2, one, found)


_Step = Callable[[ir.Node, ir.Value, Array, Absorption], None]
_STEPS: Mapping[str, _Step] = {
    **dict.fromkeys(_SAME, _same),
    **dict.fromkeys(_POOLS, _pool),
    **dict.fromkeys(_VIEWS, _view),
    **dict.fromkeys(_NORMS, _norm),
    "Clip": _clip,
    "Transpose": _transpose,
    "Split": _split,
    "Add": _add,
    "Mul": _mul,
    "Div": _div,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _conv,
    "ConvTranspose": _conv,
}
