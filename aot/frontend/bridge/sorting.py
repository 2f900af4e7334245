"""Sorting that keeps the order of equals, and what torch computes by sorting: median, k-th value, mode, quantile.

ONNX's TopK puts the lower index first among equals, so that it is a stable sort. The index of a median or k-th value
among equals is the first of them in the sorted order; torch promises none.
"""

from __future__ import annotations

from typing import Any

import torch


def _stable(x: torch.Tensor, stable: bool | None, dim: int = -1, descending: bool = False) -> Any:
    if x.dim() == 0:
        return NotImplemented
    held = x.to(torch.int32) if x.dtype == torch.bool else x
    values, indices = torch.topk(held, x.shape[dim], dim, largest=descending, sorted=True)
    return values.to(x.dtype), indices


def _kth(x: torch.Tensor, k: Any, dim: int = -1, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    values, indices = _stable(x, True, dim)
    place = torch.full((1,), 1, dtype=torch.int64) * (k - 1)
    values, indices = values.index_select(dim, place), indices.index_select(dim, place)
    return (values, indices) if keepdim else (values.squeeze(dim), indices.squeeze(dim))


def _median(x: torch.Tensor, dim: int, keepdim: bool = False) -> Any:
    """The lower of the two middle values; NaN where any is."""
    values, indices = _kth(x, (x.shape[dim] + 1) // 2, dim, keepdim)
    if x.is_floating_point():
        values = torch.where(torch.isnan(x).any(dim, keepdim), float("nan"), values)
    return values, indices


def _nanmedian(x: torch.Tensor, dim: int, keepdim: bool = False) -> Any:
    if not x.is_floating_point():
        return _median(x, dim, keepdim)
    missing = torch.isnan(x)
    there = (~missing).sum(dim, keepdim=True)
    place = ((there + 1) // 2 - 1).clamp(min=0)
    values, indices = _stable(torch.where(missing, float("inf"), x), True, dim)
    values = torch.where(there == 0, float("nan"), values.gather(dim, place))
    indices = indices.gather(dim, place)
    return (values, indices) if keepdim else (values.squeeze(dim), indices.squeeze(dim))


def quantile(
    x: torch.Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Any:
    """Between the two values next to place q * (n - 1) of n sorted ones; NaN where any is."""
    if interpolation != "linear":
        return NotImplemented
    if dim is None:
        flat = quantile(x.reshape(-1), q, 0)
        return flat.reshape(*flat.shape, *[1] * x.dim()) if keepdim else flat
    dim %= x.dim()
    wanted = q if isinstance(q, torch.Tensor) else torch.full((), q, dtype=x.dtype)
    place = wanted.reshape(-1) * (x.shape[dim] - 1)
    ordered = x.sort(dim)[0].movedim(dim, 0)
    low, high = (ordered.index_select(0, end.to(torch.int64)) for end in (place.floor(), place.ceil()))
    found = torch.lerp(low, high, (place - place.floor()).reshape(-1, *[1] * (x.dim() - 1)))
    found = torch.where(torch.isnan(x).any(dim), float("nan"), found)
    found = found.unsqueeze(dim + 1) if keepdim else found
    return found if wanted.dim() else found.squeeze(0)


def _mode(x: torch.Tensor, dim: int = -1, keepdim: bool = False) -> Any:
    """The smallest of the most frequent values, and where it is last. Each is compared with all, n * n a row."""
    if x.dim() == 0:
        return NotImplemented
    values = _stable(x, True, dim)[0].movedim(dim, -1)
    often = (values[..., None] == values[..., None, :]).sum(-1)
    value = values.gather(-1, often.argmax(-1, keepdim=True)).movedim(-1, dim)
    place = torch.arange(x.shape[dim]).reshape([-1 if axis == dim % x.dim() else 1 for axis in range(x.dim())])
    index = torch.where(x == value, place, 0).amax(dim, keepdim=True)
    return (value, index) if keepdim else (value.squeeze(dim), index.squeeze(dim))


_aten = torch.ops.aten
REWRITE: dict[Any, Any] = {
    _aten.sort.stable: _stable,
    _aten.kthvalue.default: _kth,
    _aten.median.dim: _median,
    _aten.median.default: lambda x: _median(x.reshape(-1), 0)[0],
    _aten.mode.default: _mode,
    _aten.nanmedian.dim: _nanmedian,
    _aten.nanmedian.default: lambda x: _nanmedian(x.reshape(-1), 0)[0],
}
