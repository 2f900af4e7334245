"""Elementwise ops, casts, reductions and products of constants, in numpy."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from aot.passes._edit import attribute
from aot.passes._kernel import KERNELS, Array, Unfoldable, kernel, room, wide

_TYPES = frozenset(
    ir.DataType.from_numpy(np.dtype(kind))
    for kind in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", ir.DataType.BFLOAT16.numpy())
)
_BFLOAT16 = ir.DataType.BFLOAT16.numpy()


def divide(a: Array, b: Array) -> Array:
    """Division of the op Div: of integers toward zero."""
    if a.dtype.kind not in "iu":
        return np.asarray(np.divide(a, b))
    if not np.all(b):
        raise Unfoldable("it divides by zero")
    down = np.floor_divide(a, b)
    return np.asarray(down + ((a % b != 0) & ((a < 0) != (b < 0)))).astype(a.dtype)


def _power(a: Array, b: Array) -> Array:
    if a.dtype.kind in "iu" and b.dtype.kind not in "iu":
        return cast(np.power(a.astype(np.float64), b), ir.DataType.from_numpy(a.dtype))
    return np.asarray(np.power(a, b.astype(a.dtype)))


def cast(x: Array, to: ir.DataType) -> Array:
    """The op Cast. Raises Unfoldable for types of less than 8 bits, FP8 and strings, and for floats that the integer
    type does not hold."""
    if to not in _TYPES or (x.dtype.kind not in "biuf" and x.dtype != _BFLOAT16):
        raise Unfoldable(f"a cast to {to.name}")
    kind = to.numpy()
    if kind.kind in "iu" and x.dtype.kind not in "biu":
        x = wide(x)
        limits = np.iinfo(kind)
        # As floats the upper limits of 32 and 64 bits round up to the first number that no longer fits.
        if not np.all((x > float(limits.min) - 1) & (x < float(limits.max) + 1)):
            raise Unfoldable("a float that the integers do not hold is cast")
        return np.asarray(np.trunc(x)).astype(kind)
    return x.astype(kind)


@kernel("Cast")
def _cast(node: ir.Node, opset: int, x: Array) -> Array:
    return cast(x, ir.DataType(attribute(node, "to")))


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Div": divide,
    "Pow": _power,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
    "Equal": operator.eq,
    "Less": operator.lt,
    "LessOrEqual": operator.le,
    "Greater": operator.gt,
    "GreaterOrEqual": operator.ge,
    "BitwiseAnd": operator.and_,
    "BitwiseOr": operator.or_,
    "BitwiseXor": operator.xor,
}
_UNARY: dict[str, Callable[[Any], Any]] = {
    "Identity": lambda x: x,
    "Neg": operator.neg,
    "Abs": np.abs,
    "Sign": np.sign,
    "Ceil": np.ceil,
    "Floor": np.floor,
    "Round": np.rint,
    "Sqrt": np.sqrt,
    "Exp": np.exp,
    "Log": np.log,
    "Sin": np.sin,
    "Cos": np.cos,
    "Tanh": np.tanh,
    "Reciprocal": lambda x: (1 / x).astype(x.dtype),
    "Relu": lambda x: np.maximum(x, np.zeros((), x.dtype)),
    "Not": np.logical_not,
    "BitwiseNot": np.invert,
    "IsNaN": np.isnan,
}
_MANY: dict[str, Callable[[Any, Any], Any]] = {"Min": np.minimum, "Max": np.maximum, "Sum": operator.add}


def _numbers(*inputs: Array) -> None:
    if any(x.dtype.kind not in "biuf" and x.dtype != _BFLOAT16 for x in inputs):
        raise Unfoldable("it computes with something other than real numbers")
    shape = np.broadcast_shapes(*(x.shape for x in inputs))
    room(shape, max(x.dtype.itemsize for x in inputs))


def _fold(function: Callable[[Any, Any], Any], *inputs: Array) -> Any:
    return functools.reduce(function, inputs)


def _enter(op: str, function: Any) -> None:
    def compute(node: ir.Node, opset: int, *inputs: Array) -> Array:
        _numbers(*inputs)
        return np.asarray(function(*inputs))

    KERNELS[op] = compute


for _op, _function in (*_BINARY.items(), *_UNARY.items()):
    _enter(_op, _function)
for _op, _function in _MANY.items():
    _enter(_op, functools.partial(_fold, _function))


@kernel("Mod")
def _mod(node: ir.Node, opset: int, a: Array, b: Array) -> Array:
    _numbers(a, b)
    if a.dtype.kind in "iu" and not np.all(b):
        raise Unfoldable("it divides by zero")
    return np.asarray(np.fmod(a, b) if attribute(node, "fmod", 0) else np.mod(a, b))


@kernel("Where")
def _where(node: ir.Node, opset: int, condition: Array, a: Array, b: Array) -> Array:
    _numbers(condition, a, b)
    return np.where(condition, a, b)


@kernel("Clip")
def _clip(node: ir.Node, opset: int, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    if opset < 11:
        low = np.asarray(attribute(node, "min", np.finfo(np.float32).min), x.dtype)
        high = np.asarray(attribute(node, "max", np.finfo(np.float32).max), x.dtype)
    x = x if low is None else np.maximum(x, low)
    return np.asarray(x if high is None else np.minimum(x, high))


def _mean(x: Array, axis: tuple[int, ...] | None, keepdims: bool) -> Array:
    if x.dtype.kind in "iu":
        raise Unfoldable("a mean of integers")
    return np.asarray(np.mean(x, axis=axis, keepdims=keepdims, dtype=x.dtype))


_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "ReduceSum": lambda x, axis, keepdims: np.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype),
    "ReduceProd": lambda x, axis, keepdims: np.prod(x, axis=axis, keepdims=keepdims, dtype=x.dtype),
    "ReduceMean": _mean,
    "ReduceMax": lambda x, axis, keepdims: np.max(x, axis=axis, keepdims=keepdims),
    "ReduceMin": lambda x, axis, keepdims: np.min(x, axis=axis, keepdims=keepdims),
}


@kernel(*_REDUCTIONS)
def _reduce(node: ir.Node, opset: int, x: Array, axes: Array | None = None) -> Array:
    _numbers(x)
    listed = attribute(node, "axes") if axes is None else axes.reshape(-1).tolist()
    if not listed and attribute(node, "noop_with_empty_axes", 0):
        return x
    along = tuple(int(axis) for axis in listed) if listed else None
    found = _REDUCTIONS[node.op_type](wide(x), along, bool(attribute(node, "keepdims", 1)))
    return np.asarray(found).astype(x.dtype)


@kernel("ArgMax", "ArgMin")
def _arg(node: ir.Node, opset: int, x: Array) -> Array:
    axis, keep = attribute(node, "axis", 0), attribute(node, "keepdims", 1)
    find = np.argmax if node.op_type == "ArgMax" else np.argmin
    if attribute(node, "select_last_index", 0):
        found = x.shape[axis] - 1 - find(np.flip(x, axis), axis=axis)
    else:
        found = find(x, axis=axis)
    return np.asarray(np.expand_dims(found, axis) if keep else found, np.int64)


@kernel("CumSum")
def _cumsum(node: ir.Node, opset: int, x: Array, axis: Array) -> Array:
    along = int(axis.reshape(()))
    backward = attribute(node, "reverse", 0)
    x = np.flip(x, along) if backward else x
    total = np.cumsum(wide(x), axis=along, dtype=wide(x).dtype)
    if attribute(node, "exclusive", 0):
        total = np.roll(total, 1, along)
        total[(slice(None),) * (along % x.ndim) + (slice(0, 1),)] = 0
    total = total.astype(x.dtype)
    return np.flip(total, along) if backward else total


@kernel("MatMul")
def _matmul(node: ir.Node, opset: int, a: Array, b: Array) -> Array:
    _numbers(a.reshape(-1)[:1], b.reshape(-1)[:1])
    room((a.size // max(a.shape[-1], 1), b.shape[-1] if b.ndim > 1 else 1), a.dtype.itemsize)
    return np.asarray(np.matmul(wide(a), wide(b))).astype(a.dtype)
