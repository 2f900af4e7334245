"""Scattering from a source that is larger than the index.

torch reads as much of the source as the index covers; ONNX wants both of one shape, and torch.onnx hands the source on
as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _cut(op: Callable[..., Any]) -> Callable[..., Any]:
    def rewrite(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *rest: Any) -> Any:
        if [str(size) for size in index.shape] == [str(size) for size in source.shape]:
            return NotImplemented
        for axis, size in enumerate(index.shape):
            if str(size) != str(source.shape[axis]):
                source = source.narrow(axis, 0, size)
        if op is _aten.scatter_reduce.two:
            return op(x, dim, index, source, rest[0], include_self=rest[1])
        return op(x, dim, index, source)

    return rewrite


_aten = torch.ops.aten
REWRITE: dict[Any, Any] = {
    op: _cut(op) for op in (_aten.scatter.src, _aten.scatter_add.default, _aten.scatter_reduce.two)
}
