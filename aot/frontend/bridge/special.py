"""Special functions by polynomials, to the accuracy of FP32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

# M. Giles, Approximating the erfinv function, GPU Computing Gems 2, 2010; the highest power first.
_CENTRAL = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
    0.246640727, 1.50140941,
)  # fmt: skip
_TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)  # fmt: skip
# Abramowitz and Stegun, 9.8.1 in (x / 3.75)^2 and 9.8.2 in 3.75 / x.
_I0_SMALL = (0.0045813, 0.0360768, 0.2659732, 1.2067492, 3.0899424, 3.5156229, 1.0)
_I0_LARGE = (
    0.00392377, -0.01647633, 0.02635537, -0.02057706, 0.00916281, -0.00157565, 0.00225319, 0.01328592, 0.39894228,
)  # fmt: skip


def _polynomial(factors: Sequence[float], x: torch.Tensor) -> torch.Tensor:
    value = torch.full_like(x, factors[0])
    for factor in factors[1:]:
        value = value * x + factor
    return value


def _erfinv(x: torch.Tensor) -> torch.Tensor:
    """Infinite at -1 and 1, NaN beyond."""
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    w = -torch.log((1 - x) * (1 + x))
    tail = _polynomial(_TAIL, torch.sqrt(w.clamp(min=5.0)) - 3)
    value = torch.where(w < 5, _polynomial(_CENTRAL, w - 2.5), tail) * x
    return torch.where(x.abs() == 1, x * float("inf"), value)


def _i0(x: torch.Tensor) -> torch.Tensor:
    """The modified Bessel function of order 0."""
    x = (x if x.is_floating_point() else x.to(torch.get_default_dtype())).abs()
    ratio = x / 3.75
    large = x.clamp(min=3.75)
    far = torch.exp(large) / torch.sqrt(large) * _polynomial(_I0_LARGE, 3.75 / large)
    return torch.where(x < 3.75, _polynomial(_I0_SMALL, ratio * ratio), far)


_aten = torch.ops.aten
REWRITE: dict[Any, Any] = {
    _aten.erfinv.default: _erfinv,
    _aten.special_erfinv.default: _erfinv,
    _aten.i0.default: _i0,
    _aten.special_i0.default: _i0,
}
