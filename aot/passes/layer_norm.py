"""Layer normalization and instance normalization written out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import Dim, array, attribute, constant, dims, made_by, nodes, only_user, opset, replace, scalar

# Both operators compute in FP32.
_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
# Elements of a gamma that is written out where the graph has none.
_MOST = 1 << 16


class _Norm(NamedTuple):
    """(x - mean(x)) / sqrt(mean((x - mean(x))²) + epsilon) over axes, which are sorted and counted from 0.

    shape: of x. mean, root: the nodes that compute mean(x) and the square root. difference: x - mean(x).
    """

    x: ir.Value
    shape: tuple[Dim, ...]
    axes: tuple[int, ...]
    epsilon: float
    mean: ir.Node
    difference: ir.Node
    root: ir.Node


class _Scaled(NamedTuple):
    """The node at which a norm ends, and what it is multiplied with and shifted by on the way."""

    last: ir.Node
    gamma: ir.Value | None = None
    beta: ir.Value | None = None


@graph_pass(
    anchors=("ReduceMean",),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,S,4] x) => (float[B,S,4] y)
    <float[4] gamma = {1, 2, 3, 4}, float[4] beta = {4, 3, 2, 1}, float two = {2}, float small = {0.001},
     int64[1] last = {-1}>
    { m = ReduceMean(x, last)  d = Sub(x, m)  s = Pow(d, two)  v = ReduceMean(s, last)  e = Add(v, small)  r = Sqrt(e)
      n = Div(d, r)  g = Mul(n, gamma)  y = Add(g, beta) }
    """,
)
def layer_norm(model: ir.Model, skip: Skip) -> int:
    """With d = x - mean(x): d / sqrt(mean(d²) + epsilon) · gamma + beta is LayerNormalization where the means are over
    the last axes, and InstanceNormalization where they are over all axes behind the channels and gamma and beta hold
    one number a channel.

    Both compute their statistics in FP32, whatever x is, so a norm in FP64 stays as it is. A scale or shift of another
    shape stays behind the norm, which then has a gamma of ones.
    """
    if opset(model) < 17:
        return 0
    changed = 0
    for root in nodes(model, "Sqrt"):
        norm = _read(root)
        if norm is None:
            continue
        if norm.x.dtype not in _TYPES:
            skip(root, "a norm in FP64 would be computed in FP32")
        elif _as_instance(model, norm, bare=False) or _as_layer(model, norm) or _as_instance(model, norm, bare=True):
            changed += 1
        else:
            skip(root, "no operator normalizes over such axes, or it is scaled in between")
    return changed


def _read(root: ir.Node) -> _Norm | None:
    total = made_by(root.inputs[0], "Add")
    if total is None:
        return None
    at = 0 if scalar(total.inputs[0]) is not None else 1
    epsilon, variance = scalar(total.inputs[at]), made_by(total.inputs[1 - at], "ReduceMean")
    square = made_by(variance.inputs[0], "Mul", "Pow") if variance is not None else None
    if epsilon is None or variance is None or square is None:
        return None
    if square.inputs[1] is not square.inputs[0] and (square.op_type == "Mul" or scalar(square.inputs[1]) != 2):
        return None
    difference = made_by(square.inputs[0], "Sub")
    mean = made_by(difference.inputs[1], "ReduceMean") if difference is not None else None
    if difference is None or mean is None or mean.inputs[0] is not difference.inputs[0]:
        return None
    x, shape, axes = mean.inputs[0], dims(mean.inputs[0]), _axes(mean)
    if x is None or shape is None or not axes or axes != _axes(variance) or mean.graph is not root.graph:
        return None
    return _Norm(x, shape, axes, epsilon, mean, difference, root)


def _axes(mean: ir.Node) -> tuple[int, ...] | None:
    """What the mean is over, sorted and counted from 0; None where that is not known, or the axes are dropped."""
    shape = dims(mean.inputs[0])
    given = array(mean.inputs[1]) if len(mean.inputs) > 1 else attribute(mean, "axes")
    if shape is None or given is None or not attribute(mean, "keepdims", 1):
        return None
    return tuple(sorted({int(axis) % len(shape) for axis in given}))


def _as_layer(model: ir.Model, norm: _Norm) -> bool:
    first, rank = norm.axes[0], len(norm.shape)
    over = norm.shape[first:]
    found = _scaled(norm, over) if norm.axes == tuple(range(first, rank)) else None
    if found is None or (found.gamma is None and not _writable(over)):
        return False
    inputs = [norm.x, _parameter(model, norm, found.gamma, over, 1)]
    if found.beta is not None:
        inputs.append(_parameter(model, norm, found.beta, over, 0))
    replace(found.last, "LayerNormalization", inputs, {"axis": first - rank, "epsilon": norm.epsilon})
    return True


def _as_instance(model: ir.Model, norm: _Norm, *, bare: bool) -> bool:
    """Write the norm as InstanceNormalization; `bare`: even where nothing is scaled or shifted."""
    rank = len(norm.shape)
    if rank < 3 or norm.axes != tuple(range(2, rank)) or not _writable(norm.shape[1:2]):
        return False
    found = _scaled(norm, (norm.shape[1], *[1] * (rank - 2)))
    if found is None or (found.gamma is None and found.beta is None and not bare):
        return False
    if any(value is not None and array(value) is None for value in (found.gamma, found.beta)):
        return False
    each = norm.shape[1:2]
    inputs = [norm.x, _parameter(model, norm, found.gamma, each, 1), _parameter(model, norm, found.beta, each, 0)]
    replace(found.last, "InstanceNormalization", inputs, {"epsilon": norm.epsilon})
    return True


def _scaled(norm: _Norm, each: tuple[Dim, ...]) -> _Scaled | None:
    """The norm with a gamma and beta of that shape, where it has them: (d / root)·gamma + beta, (d·gamma) / root + beta
    or x·k + (beta - mean(x)·k) with k = gamma / root. None where the root is used in another way."""
    quotient = only_user(norm.root.outputs[0])
    if quotient is None or quotient.domain or quotient.op_type != "Div" or quotient.graph is not norm.root.graph:
        return None
    over, under = quotient.inputs
    if under is not norm.root.outputs[0] or over is None:
        return None
    if _is_difference(over.producer(), norm):
        return _shifted(*_operand(quotient, "Mul", each, norm), each, norm)
    product = made_by(over, "Mul")
    if product is not None:
        at = 0 if _is_difference(product.inputs[0].producer() if product.inputs[0] else None, norm) else 1
        d, gamma = product.inputs[at], product.inputs[1 - at]
        fits = d is not None and _is_difference(d.producer(), norm) and _fits(gamma, each, norm)
        return _shifted(quotient, gamma, each, norm) if fits else None
    return _spread(norm, quotient, over) if _fits(over, each, norm) else None


def _is_difference(node: ir.Node | None, norm: _Norm) -> bool:
    """Whether it is x - mean(x), which some exporters write twice."""
    return node is not None and node.op_type == "Sub" and tuple(node.inputs) == tuple(norm.difference.inputs)


def _spread(norm: _Norm, k: ir.Node, gamma: ir.Value) -> _Scaled | None:
    """x·k + (beta - mean(x)·k)."""
    factor, mean = k.outputs[0], norm.mean.outputs[0]
    users = [use.node for use in factor.uses()]
    if len(users) != 2 or factor.is_graph_output():
        return None
    for scaled, moved in (users, users[::-1]):
        if not (set(scaled.inputs) == {norm.x, factor} and set(moved.inputs) == {mean, factor}):
            continue
        shift, total = only_user(moved.outputs[0]), only_user(scaled.outputs[0])
        if scaled.op_type != "Mul" or moved.op_type != "Mul" or shift is None or total is None:
            continue
        if shift.op_type == "Sub" and shift.inputs[1] is moved.outputs[0] and total.op_type == "Add":
            beta = shift.inputs[0]
            fits = set(total.inputs) == {scaled.outputs[0], shift.outputs[0]} and dims(beta) == dims(gamma)
            return _Scaled(total, gamma, beta) if fits and only_user(shift.outputs[0]) is total else None
    return None


def _operand(node: ir.Node, op: str, each: tuple[Dim, ...], norm: _Norm) -> tuple[ir.Node, ir.Value | None]:
    """The one reader of `node` and its other operand, if it is of that type and the operand fits; else `node`."""
    user = only_user(node.outputs[0])
    if user is None or user.domain or user.op_type != op or user.graph is not node.graph:
        return node, None
    other = user.inputs[1 if user.inputs[0] is node.outputs[0] else 0]
    return (user, other) if _fits(other, each, norm) else (node, None)


def _shifted(last: ir.Node, gamma: ir.Value | None, each: tuple[Dim, ...], norm: _Norm) -> _Scaled:
    end, beta = _operand(last, "Add", each, norm)
    return _Scaled(end, gamma, beta)


def _fits(value: ir.Value | None, each: tuple[Dim, ...], norm: _Norm) -> bool:
    """Whether the value has that shape; a constant may have more dims of 1 in front."""
    shape = dims(value)
    if value is None or shape is None or value.dtype != norm.x.dtype or None in shape:
        return False
    spare = len(shape) - len(each)
    if spare > 0 and array(value) is not None and len(shape) <= len(norm.shape):
        return shape == (*[1] * spare, *each)
    return shape == each


def _writable(shape: tuple[Dim, ...]) -> bool:
    """Whether a constant of that shape can be written, and is small."""
    sizes = [size for size in shape if isinstance(size, int)]
    return len(sizes) == len(shape) and int(np.prod(sizes)) <= _MOST


def _parameter(model: ir.Model, norm: _Norm, value: ir.Value | None, each: tuple[Dim, ...], fill: int) -> ir.Value:
    """`value` in the shape `each`; constants of `fill` where there is none."""
    if value is not None and dims(value) == each:
        return value
    sizes = [size for size in each if isinstance(size, int)]
    data = array(value)
    if data is None:
        assert norm.x.dtype is not None
        data = np.full(sizes, fill, norm.x.dtype.numpy())
    name = value.name if value is not None else f"{norm.root.outputs[0].name}_{('zeros', 'ones')[fill]}"
    return constant(model, f"{name}_each" if value is not None else str(name), data.reshape(sizes))
