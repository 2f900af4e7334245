"""Splitting an axis of unknown size, as one slice a part: torch.onnx writes a sequence, which TensorRT has not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def _parts(x: torch.Tensor, sizes: Sequence[Any], dim: int) -> tuple[torch.Tensor, ...]:
    """Parts of these sizes along an axis, one behind the other."""
    made, start = [], 0
    for size in sizes:
        made.append(x.narrow(dim, start, size))
        start = start + size
    return tuple(made)


def _even(split: Callable[..., Sequence[torch.Tensor]]) -> Callable[..., Any]:
    """For a split into parts of one size, but for the last."""

    def rewrite(x: torch.Tensor, into: Any, dim: int = 0) -> Any:
        if isinstance(x.shape[dim], int):
            return NotImplemented
        return _parts(x, [part.shape[dim] for part in split(x, into, dim)], dim)

    return rewrite


def _with_sizes(x: torch.Tensor, sizes: Sequence[Any], dim: int = 0) -> Any:
    return NotImplemented if all(isinstance(size, int) for size in sizes) else _parts(x, sizes, dim)


_aten = torch.ops.aten
REWRITE: dict[Any, Any] = {
    _aten.chunk.default: _even(torch.chunk),
    _aten.split.Tensor: _even(torch.split),
    _aten.unsafe_chunk.default: _even(torch.chunk),
    _aten.unsafe_split.Tensor: _even(torch.split),
    _aten.split_with_sizes.default: _with_sizes,
    _aten.unsafe_split_with_sizes.default: _with_sizes,
}
