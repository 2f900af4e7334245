"""Adaptive pooling for any size of the input, dynamic ones included.

torch.onnx writes the windows of the example's size into the graph. Here window i of O over a length of L reaches from
floor(i * L / O) to ceil((i + 1) * L / O), as torch's kernels define it, computed in the graph from the length it has:
averages are a matrix product along each axis, maxima a masked reduction. An output of one, or of a length that divides
a fixed one, is left to the exporter: that is a plain pooling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def _windows(length: Any, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Which positions each window holds, bool [count, length], and how many, int64 [count, 1]."""
    index = torch.arange(count)
    start = (index * length) // count
    end = ((index + 1) * length + count - 1) // count
    place = torch.arange(length)
    return (place >= start[:, None]) & (place < end[:, None]), (end - start)[:, None]


def _plain(length: Any, count: Any) -> bool:
    return count is None or (isinstance(length, int) and isinstance(count, int) and length % count == 0)


def _each(x: torch.Tensor, size: Any, rank: int, pool: Callable[[torch.Tensor, int, int], torch.Tensor]) -> Any:
    """Pool each of the last `rank` axes in turn."""
    sizes = list(size) if isinstance(size, Sequence) else [size] * rank
    lengths = x.shape[-rank:]
    if all(map(_plain, lengths, sizes)) or all(count == 1 for count in sizes):
        return NotImplemented
    for axis, count in enumerate(sizes, x.dim() - rank):
        if count is not None:
            x = pool(x, axis, count)
    return x


def _mean(x: torch.Tensor, axis: int, count: int) -> torch.Tensor:
    inside, many = _windows(x.shape[axis], count)
    weights = inside.to(x.dtype) / many.to(x.dtype)
    return torch.matmul(x.transpose(axis, -1), weights.t()).transpose(axis, -1)


def _largest(x: torch.Tensor, axis: int, count: int) -> torch.Tensor:
    inside, _ = _windows(x.shape[axis], count)
    spread = x.transpose(axis, -1).unsqueeze(-2)
    return torch.where(inside, spread, float("-inf")).amax(-1).transpose(axis, -1)


def _average(rank: int) -> Callable[..., Any]:
    return lambda x, size: _each(x, size, rank, _mean)


def _maximum(rank: int) -> Callable[..., Any]:
    def maximum(x: torch.Tensor, size: Any) -> Any:
        pooled = _each(x, size, rank, _largest)
        return pooled if pooled is NotImplemented else (pooled, None)

    return maximum


_aten = torch.ops.aten
REWRITE: dict[Any, Any] = {
    _aten.adaptive_avg_pool1d.default: _average(1),
    _aten.adaptive_avg_pool2d.default: _average(2),
    _aten._adaptive_avg_pool2d.default: _average(2),
    _aten.adaptive_avg_pool3d.default: _average(3),
    _aten._adaptive_avg_pool3d.default: _average(3),
    _aten.adaptive_max_pool1d.default: _maximum(1),
    _aten.adaptive_max_pool2d.default: _maximum(2),
    _aten.adaptive_max_pool3d.default: _maximum(3),
}
