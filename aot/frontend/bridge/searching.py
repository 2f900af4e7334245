"""Searching a sorted sequence, picking by a mask, rolling by a computed distance, and distances other than Euclid's."""

from __future__ import annotations

from typing import Any

import torch

# Up to this length of vector, a distance is computed from the difference.
_SHORT = 16


def _searchsorted(
    ordered: torch.Tensor,
    values: Any,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: torch.Tensor | None = None,
) -> torch.Tensor:
    """How many of the sequence lie before each value: a comparison of all with all."""
    if sorter is not None:
        ordered = ordered.gather(-1, sorter)
    given = values if isinstance(values, torch.Tensor) else torch.full((), values, dtype=ordered.dtype)
    ordered = ordered.unsqueeze(-2) if ordered.dim() > 1 else ordered
    wanted = given.unsqueeze(-1)
    before = ordered <= wanted if right or side == "right" else ordered < wanted
    return before.sum(-1, dtype=torch.int32 if out_int32 else torch.int64)


def _masked_select(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    mask = mask & torch.ones_like(x, dtype=torch.bool)
    x = x.expand(mask.shape)
    return x.reshape(-1).index_select(0, mask.reshape(-1).nonzero().squeeze(1))


def _roll(x: torch.Tensor, shifts: Any, dims: Any = ()) -> Any:
    """A distance that depends on sizes: torch.onnx takes constants only."""
    if not any(isinstance(shift, torch.SymInt) for shift in shifts):
        return NotImplemented
    if not dims:
        return _roll(x.reshape(-1), shifts, [0]).reshape(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        length = x.shape[dim]
        place = torch.remainder(torch.arange(length) - shift, torch.full((), length))
        x = x.index_select(dim, place)
    return x


def cdist(a: torch.Tensor, b: torch.Tensor, p: float = 2.0, mode: int | None = None) -> Any:
    """[..., N, D] and [..., M, D] to [..., N, M].

    For long vectors Euclid's distance is |a|^2 + |b|^2 - 2 ab, one matrix product, as torch has it for many of them;
    for short ones (coordinates) the difference itself, which loses no digits.
    """
    width = a.shape[-1]
    if p == 2.0 and not (isinstance(width, int) and width <= _SHORT):
        squares = a.square().sum(-1, keepdim=True) + b.square().sum(-1).unsqueeze(-2)
        return (squares - 2.0 * torch.matmul(a, b.transpose(-1, -2))).clamp(min=0.0).sqrt()
    return torch.linalg.vector_norm(a.unsqueeze(-2) - b.unsqueeze(-3), p, -1)


def _pdist(x: torch.Tensor, p: float = 2.0) -> Any:
    """The pairs i < j of [N, D], row by row."""
    count = x.shape[0]
    place = torch.arange(count)
    pairs = (place[:, None] < place).reshape(-1).nonzero().squeeze(1)
    return cdist(x, x, p).reshape(-1).index_select(0, pairs)


_aten = torch.ops.aten
REWRITE: dict[Any, Any] = {
    _aten.searchsorted.Tensor: _searchsorted,
    _aten.searchsorted.Scalar: _searchsorted,
    _aten.masked_select.default: _masked_select,
    _aten.roll.default: _roll,
    _aten.cdist.default: cdist,
    _aten._cdist_forward.default: cdist,
    _aten._pdist_forward.default: _pdist,
    _aten.pdist.default: _pdist,
}
