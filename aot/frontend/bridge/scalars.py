"""Arithmetic of a tensor with a number: a size where torch.onnx takes a constant, or a fraction with whole numbers.

Many of torch.onnx's translations take a Python number for what may be a size, and some know no number on the left. Its
type promotion finds no overload for some ops of an integer tensor and a fraction, `1.0 - mask` among them, and up to
torch 2.11 none for `where` of two dtypes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _is_size(*numbers: Any) -> bool:
    return any(isinstance(number, torch.SymInt | torch.SymFloat) for number in numbers)


def _mixed(x: Any, *numbers: Any) -> bool:
    """Whether x holds whole numbers and a fraction is among the numbers, so that torch computes in floats."""
    whole = isinstance(x, torch.Tensor) and not x.is_floating_point() and not x.is_complex()
    return whole and any(isinstance(number, float | torch.SymFloat) for number in numbers)


def _widened(x: torch.Tensor, *numbers: Any) -> torch.Tensor:
    """x in the dtype that torch computes in with these numbers."""
    return x.to(torch.get_default_dtype()) if _mixed(x, *numbers) else x


def _of_fractions(op: Callable[..., Any]) -> Callable[..., Any]:
    """For an op that torch.onnx has for floats."""

    def rewrite(x: Any, number: Any, alpha: Any = 1) -> Any:
        if not _mixed(x, number, alpha):
            return NotImplemented
        return op(_widened(x, number, alpha), number, **({} if alpha == 1 else {"alpha": alpha}))

    return rewrite


def _second(op: Callable[..., Any]) -> Callable[..., Any]:
    """For an op on a tensor and a number that also takes two tensors."""

    def rewrite(x: torch.Tensor, number: Any) -> Any:
        if not _is_size(number):
            return NotImplemented
        x = _widened(x, number)
        return op(x, torch.full((), number, dtype=x.dtype))

    return rewrite


def _first(op: Callable[..., Any]) -> Callable[..., Any]:
    def rewrite(number: Any, x: torch.Tensor) -> Any:
        x = _widened(x, number)
        return op(torch.full((), number, dtype=x.dtype), x)

    return rewrite


def _floor_divide(a: Any, b: Any) -> Any:
    rewrite = _of_fractions(torch.floor_divide) if isinstance(a, torch.Tensor) else _first(torch.floor_divide)
    return rewrite(a, b)


def power(base: Any, exponent: Any) -> Any:
    """One of the two is a tensor; NotImplemented where the other one is no size."""
    if isinstance(base, torch.Tensor):
        return _second(torch.pow)(base, exponent)
    return _first(torch.pow)(base, exponent) if _is_size(base) else NotImplemented


def _where(condition: torch.Tensor, a: Any, b: Any) -> Any:
    a, b = (value if isinstance(value, torch.Tensor) else torch.full((), value) for value in (a, b))
    dtype = torch.result_type(a, b)
    return NotImplemented if a.dtype == b.dtype else torch.where(condition, a.to(dtype), b.to(dtype))


def _weighted(function: Callable[..., Any]) -> Callable[..., Any]:
    def rewrite(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, value: Any = 1) -> Any:
        return x + function(a, b) * value if _is_size(value) else NotImplemented

    return rewrite


def _leaky_relu(x: torch.Tensor, slope: Any = 0.01) -> Any:
    return torch.where(x > 0, x, x * slope) if _is_size(slope) else NotImplemented


_aten = torch.ops.aten
REWRITE: dict[Any, Any] = {
    _aten.sub.Tensor: _of_fractions(torch.sub),
    _aten.rsub.Scalar: _of_fractions(torch.rsub),
    _aten.mul.Tensor: _of_fractions(torch.mul),
    _aten.floor_divide.default: _floor_divide,
    _aten.remainder.Scalar_Tensor: _first(torch.remainder),
    _aten.remainder.Scalar: _second(torch.remainder),
    _aten.fmod.Scalar: _second(torch.fmod),
    _aten.pow.Tensor_Scalar: _second(torch.pow),
    _aten.pow.Scalar: _first(torch.pow),
    **{name: _second(torch.bitwise_and) for name in (_aten.bitwise_and.Scalar, _aten.__and__.Scalar)},
    **{name: _second(torch.bitwise_or) for name in (_aten.bitwise_or.Scalar, _aten.__or__.Scalar)},
    **{name: _second(torch.bitwise_xor) for name in (_aten.bitwise_xor.Scalar, _aten.__xor__.Scalar)},
    _aten.addcmul.default: _weighted(torch.mul),
    _aten.addcdiv.default: _weighted(torch.div),
    _aten.leaky_relu.default: _leaky_relu,
    **{name: _where for name in (_aten.where.Scalar, _aten.where.ScalarSelf, _aten.where.ScalarOther)},
}
