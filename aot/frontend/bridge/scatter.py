"""Scattering from a source that is larger than the index, means, and a value that is a size.

torch reads as much of the source as the index covers; ONNX wants both of one shape, and torch.onnx hands the source on
as it is. ONNX has no mean among its reductions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _cut(index: torch.Tensor, source: torch.Tensor) -> torch.Tensor | None:
    """As much of the source as the index covers; None where that is all of it."""
    due = [axis for axis, size in enumerate(index.shape) if str(size) != str(source.shape[axis])]
    for axis in due:
        source = source.narrow(axis, 0, index.shape[axis])
    return source if due else None


def _plain(op: Callable[..., Any]) -> Callable[..., Any]:
    def rewrite(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> Any:
        cut = _cut(index, source)
        return NotImplemented if cut is None else op(x, dim, index, cut)

    return rewrite


def _reduce(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, include_self: bool = True
) -> Any:
    cut = _cut(index, source)
    if reduce == "mean":
        source = source if cut is None else cut
        if not x.is_floating_point():
            raise NotImplementedError("scatter_reduce with the mean of integers")
        total = torch.scatter_reduce(x, dim, index, source, "sum", include_self=include_self)
        count = torch.scatter_reduce(
            torch.ones_like(x), dim, index, torch.ones_like(source), "sum", include_self=include_self
        )
        return total / count
    if cut is None:
        return NotImplemented
    return torch.scatter_reduce(x, dim, index, cut, reduce, include_self=include_self)


def _value(x: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> Any:
    if not isinstance(value, torch.SymInt | torch.SymFloat):
        return NotImplemented
    return torch.scatter(x, dim, index, torch.full(index.shape, value, dtype=x.dtype))


_aten = torch.ops.aten
REWRITE: dict[Any, Any] = {
    _aten.scatter.src: _plain(_aten.scatter.src),
    _aten.scatter.value: _value,
    _aten.scatter_add.default: _plain(_aten.scatter_add.default),
    _aten.scatter_reduce.two: _reduce,
}
