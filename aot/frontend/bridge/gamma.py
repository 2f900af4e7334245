"""The logarithm of the gamma function and its derivative, to the accuracy of FP32."""

from __future__ import annotations

import math
from typing import Any

import torch

# P. Godfrey, A note on the computation of the convergent Lanczos complex gamma approximation, 2001: g = 7, n = 9.
_G = 7.0
_LANCZOS = (
    676.5203681218851,
    -1259.1392167224028,
    771.32342877765313,
    -176.61502916214059,
    12.507343278686905,
    -0.13857109526572012,
    9.9843695780195716e-6,
    1.5056327351493116e-7,
)
_SHIFT = 6
"""From here on the asymptotic series of digamma has FP32's accuracy."""


def _lgamma(x: torch.Tensor) -> torch.Tensor:
    """log |gamma(x)|, by reflection below 1/2; infinite at 0, -1, ..."""
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    mirrored = x < 0.5
    z = torch.where(mirrored, -x, x - 1)
    series = torch.full_like(z, 0.99999999999980993)
    for place, factor in enumerate(_LANCZOS, start=1):
        series = series + factor / (z + place)
    t = z + _G + 0.5
    # (z + 1/2) log t - t, near z = 0 without the difference of large numbers
    value = (z + 0.5) * (torch.log(t) - 1) - _G + torch.log(series * math.sqrt(2 * math.pi))
    sine = torch.sin(math.pi * (x - torch.round(x))).abs()
    return torch.where(mirrored, math.log(math.pi) - torch.log(sine) - value, value)


def _digamma(x: torch.Tensor) -> torch.Tensor:
    """Abramowitz and Stegun, 6.3.6, 6.3.7 and 6.3.18. NaN at -1, -2, ..., minus infinity at 0, as torch has it."""
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    mirrored = x < 0.5
    z = torch.where(mirrored, 1 - x, x)
    value = torch.zeros_like(z)
    for step in range(_SHIFT):
        value = value - 1 / (z + step)
    z = z + _SHIFT
    square = 1 / (z * z)
    value = value + torch.log(z) - 0.5 / z - square * (1 / 12 - square * (1 / 120 - square / 252))
    angle = math.pi * (x - torch.round(x))
    value = torch.where(mirrored, value - math.pi * torch.cos(angle) / torch.sin(angle), value)
    return torch.where((x < 0) & (x == torch.round(x)), float("nan"), value)


_aten = torch.ops.aten
REWRITE: dict[Any, Any] = {
    _aten.lgamma.default: _lgamma,
    _aten.special_gammaln.default: _lgamma,
    _aten.digamma.default: _digamma,
    _aten.special_digamma.default: _digamma,
    _aten.special_psi.default: _digamma,
}
