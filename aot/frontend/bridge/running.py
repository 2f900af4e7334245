"""Running products, maxima and minima along an axis, which ONNX lacks (it has running sums).

Each is a reduction over everything up to a position: O(length squared) memory, which suits the short axes these are
used on; there is no loop that a backend would have to unroll.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _up_to(x: torch.Tensor, dim: int, fill: float | int) -> torch.Tensor:
    """[..., length, length]: row i holds x up to i along `dim`, and `fill` after."""
    length = x.shape[dim]
    place = torch.arange(length)
    return torch.where(place <= place[:, None], x.movedim(dim, -1).unsqueeze(-2), fill)


def _product(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
    if x.dim() == 0:
        return NotImplemented
    wide = dtype or (x.dtype if x.is_floating_point() else torch.int64)
    return _up_to(x.to(wide), dim, 1).prod(-1).movedim(-1, dim)


def _extreme(sign: int) -> Callable[..., Any]:
    def rewrite(x: torch.Tensor, dim: int) -> Any:
        if x.dim() == 0 or x.dtype == torch.bool:
            return NotImplemented
        kept = x if x.is_floating_point() else x.to(torch.float64)
        rows = _up_to(kept * sign, dim, float("-inf"))
        values = rows.amax(-1)
        # torch names the last of equals.
        place = torch.arange(x.shape[dim])
        indices = torch.where(rows == values.unsqueeze(-1), place, -1).amax(-1)
        return (values * sign).to(x.dtype).movedim(-1, dim), indices.movedim(-1, dim)

    return rewrite


_aten = torch.ops.aten
REWRITE: dict[Any, Any] = {
    _aten.cumprod.default: _product,
    _aten.cummax.default: _extreme(1),
    _aten.cummin.default: _extreme(-1),
}
