"""Elementwise functions that have no ONNX operator, in terms of those that have one."""

from __future__ import annotations

from typing import Any

import torch


def _fmax(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The larger one; the other one where one is NaN."""
    return torch.maximum(torch.where(torch.isnan(a), b, a), torch.where(torch.isnan(b), a, b))


def _fmin(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.minimum(torch.where(torch.isnan(a), b, a), torch.where(torch.isnan(b), a, b))


def _hypot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Scaled by the larger one, so that no square overflows."""
    high, low = torch.maximum(a.abs(), b.abs()), torch.minimum(a.abs(), b.abs())
    ratio = low / torch.where(high == 0, 1.0, high)
    return high * torch.sqrt(1.0 + ratio * ratio)


def _signbit(x: torch.Tensor) -> torch.Tensor:
    """Whether negative, the zero with a sign included: its reciprocal tells."""
    return (x < 0) | ((x == 0) & (1.0 / x < 0)) if x.is_floating_point() else x < 0


def _copysign(x: torch.Tensor, sign: Any) -> torch.Tensor:
    negative = _signbit(sign) if isinstance(sign, torch.Tensor) else torch.full_like(x, sign) < 0
    return torch.where(negative, -x.abs(), x.abs())


def _power_of_two(x: torch.Tensor, by: Any) -> torch.Tensor:
    """2 ** by, an integer in the dtype of x."""
    return torch.pow(2, by.to(torch.int64)).to(x.dtype) if isinstance(by, torch.Tensor) else torch.full_like(x, 2**by)


def _shift_left(x: torch.Tensor, by: Any) -> torch.Tensor:
    return x * _power_of_two(x, by)


def _shift_right(x: torch.Tensor, by: Any) -> torch.Tensor:
    """Rounds down, negative numbers too: ONNX's own shift knows unsigned ones only."""
    return torch.div(x, _power_of_two(x, by), rounding_mode="floor")


def _rrelu(x: torch.Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, _: Any = None) -> Any:
    if training:
        return NotImplemented
    return torch.nn.functional.leaky_relu(x, (lower + upper) / 2)


_aten = torch.ops.aten
REWRITE: dict[Any, Any] = {
    _aten.fmax.default: _fmax,
    _aten.fmin.default: _fmin,
    _aten.hypot.default: _hypot,
    _aten.signbit.default: _signbit,
    _aten.copysign.Tensor: _copysign,
    _aten.copysign.Scalar: _copysign,
    _aten.rrelu.default: _rrelu,
    **{op: _shift_left for op in (_aten.__lshift__.Tensor, _aten.bitwise_left_shift.Tensor)},
    **{op: _shift_left for op in (_aten.__lshift__.Scalar, _aten.bitwise_left_shift.Tensor_Scalar)},
    **{op: _shift_right for op in (_aten.__rshift__.Tensor, _aten.bitwise_right_shift.Tensor)},
    **{op: _shift_right for op in (_aten.__rshift__.Scalar, _aten.bitwise_right_shift.Tensor_Scalar)},
}
