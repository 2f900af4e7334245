"""Reductions whose translation drops an argument: a dtype to compute in, or that all axes are meant; and what ONNX's
average pooling lacks, a divisor of one's own."""

from __future__ import annotations

from typing import Any

import torch


def _mean(x: torch.Tensor, dtype: torch.dtype | None = None) -> Any:
    if dtype is None or dtype == x.dtype:
        return NotImplemented
    return x.to(dtype).mean()


def _mean_dim(x: torch.Tensor, dim: Any = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Any:
    """torch.onnx divides in the input's dtype, in integers too, and casts the result."""
    if dtype is None or dtype == x.dtype:
        return NotImplemented
    return x.to(dtype).mean(dim, keepdim)


def _aminmax(x: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    if dim is None:
        low, high = x.min(), x.max()
        return (low.reshape([1] * x.dim()), high.reshape([1] * x.dim())) if keepdim else (low, high)
    return x.amin(dim, keepdim), x.amax(dim, keepdim)


def _all_axes(name: str) -> Any:
    def rewrite(x: torch.Tensor, dim: Any = (), keepdim: bool = False) -> Any:
        if dim or not x.dim():
            return NotImplemented
        return getattr(x, name)(list(range(x.dim())), keepdim)

    return rewrite


def _avg_pool(rank: int) -> Any:
    pool: Any = (torch.nn.functional.avg_pool1d, torch.nn.functional.avg_pool2d, torch.nn.functional.avg_pool3d)[
        rank - 1
    ]

    def rewrite(
        x: torch.Tensor,
        kernel: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        include: bool = True,
        divisor: int | None = None,
    ) -> Any:
        """The translation forgets the divisor; with the padding counted, the sum is the mean times the window."""
        if divisor is None:
            return NotImplemented
        if ceil_mode:
            raise NotImplementedError("average pooling with both ceil_mode and divisor_override")
        sizes = list(kernel) * rank if len(kernel) == 1 else list(kernel)
        area = 1
        for size in sizes:
            area *= size
        return pool(x, kernel, stride or None, padding, False, True) * (area / divisor)

    return rewrite


_aten = torch.ops.aten
REWRITE: dict[Any, Any] = {
    _aten.mean.default: _mean,
    _aten.mean.dim: _mean_dim,
    _aten.aminmax.default: _aminmax,
    _aten.amax.default: _all_axes("amax"),
    _aten.amin.default: _all_axes("amin"),
    _aten.avg_pool2d.default: _avg_pool(2),
    _aten.avg_pool3d.default: _avg_pool(3),
}
