"""Resizing where ONNX's Resize says something else than torch, or no backend takes what it says.

Antialiased resizing (TensorRT has none) is a product with one matrix of weights an axis, computed in the graph from the
sizes it has. Nearest-neighbour resizing by a fraction picks by index, rounded as torch rounds: in FP32, from the scale
as given. `resized` also serves scales that depend on sizes, which torch.export cannot pass to torch's own operator.

The formulas are those of torch's CPU kernels (`UpSampleKernel.cpp`): pixel i of the output lies at
scale * (i + 0.5) - 0.5 of the input, or at scale * i with aligned corners, where scale is input / output unless given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

# Cubic convolution: torch takes Keys' -0.75, and with antialiasing -0.5.
_CUBIC, _CUBIC_ANTIALIASED = -0.75, -0.5


def resized(
    x: torch.Tensor, sizes: Sequence[Any], scales: Sequence[Any], mode: str, corners: bool, antialias: bool
) -> torch.Tensor:
    """Resize the last axes of x to `sizes`; `scales` are output / input where given, else None.

    mode: nearest, nearest-exact, linear or cubic.
    """
    for axis, (size, scale) in enumerate(zip(sizes, scales, strict=True), x.dim() - len(sizes)):
        length = x.shape[axis]
        if mode.startswith("nearest"):
            x = x.index_select(axis, _nearest(length, size, scale, 0.5 if mode == "nearest-exact" else 0.0))
        else:
            weights = _weights(length, size, scale, mode, corners, antialias, x.dtype)
            x = torch.matmul(x.transpose(axis, -1), weights.t()).transpose(axis, -1)
    return x


def _ratio(length: Any, size: Any, scale: Any, corners: bool) -> Any:
    """Input pixels an output pixel."""
    if corners:
        return (length - 1) / torch.sym_max(size - 1, 1)
    return 1.0 / scale if scale is not None else length / size


def _nearest(length: Any, size: Any, scale: Any, offset: float) -> torch.Tensor:
    place = torch.arange(size, dtype=torch.float32) + offset
    return torch.floor(place * _ratio(length, size, scale, False)).clamp(max=length - 1).to(torch.int64)


def _weights(
    length: Any, size: Any, scale: Any, mode: str, corners: bool, antialias: bool, dtype: torch.dtype
) -> torch.Tensor:
    """What each input pixel adds to each output pixel, [size, length]."""
    ratio = _ratio(length, size, scale, corners)
    made = dtype if dtype == torch.float64 else torch.float32
    row = torch.arange(size, dtype=made)[:, None]
    column = torch.arange(length, dtype=made)
    if antialias:
        center = (row + 0.5) * ratio
        spread = torch.sym_max(ratio, 1.0)
        distance = ((column + 0.5 - center) / spread).abs()
        weights = _triangle(distance) if mode == "linear" else _cubic(distance, _CUBIC_ANTIALIASED)
        return (weights / weights.sum(-1, keepdim=True)).to(dtype)
    source = row * ratio if corners else (row + 0.5) * ratio - 0.5
    if mode == "linear":
        weights = _triangle((source.clamp(min=0.0).clamp(max=length - 1) - column).abs())
        return weights.to(dtype)
    first = torch.floor(source)
    taps = [
        (column == (first + tap).clamp(min=0.0).clamp(max=length - 1)).to(made)
        * _cubic((source - first - tap).abs(), _CUBIC)
        for tap in (-1, 0, 1, 2)
    ]
    return (taps[0] + taps[1] + taps[2] + taps[3]).to(dtype)


def _triangle(distance: torch.Tensor) -> torch.Tensor:
    return (1.0 - distance).clamp(min=0.0)


def _cubic(x: torch.Tensor, a: float) -> torch.Tensor:
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    far = ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
    return torch.where(x < 1.0, near, torch.where(x < 2.0, far, 0.0))


def _sizes(x: torch.Tensor, size: Any, scales: Sequence[float] | None, rank: int) -> tuple[Sequence[Any], list[Any]]:
    """Output sizes and scales, from the sizes or the scales an op was given."""
    if scales is None:
        return size, [None] * rank
    lengths = x.shape[-rank:]
    return [torch.sym_int(n * s) for n, s in zip(lengths, scales, strict=True)], list(scales)


def _antialiased(mode: str) -> Callable[..., Any]:
    def rewrite(x: torch.Tensor, size: Any, corners: bool, *scales: Any) -> Any:
        # The `vec` overload gives the scales as one list, the other one by one, or None.
        given: Any = scales if len(scales) == 2 else (None, None)
        if size is None:
            size, given = _sizes(x, size, scales[0], 2)
        return resized(x, size, given, mode, corners, antialias=True)

    return rewrite


def _fraction(scale: Any) -> bool:
    return bool(scale) and not (float(scale).is_integer() or (1.0 / scale).is_integer())


def _by_fraction(rank: int, mode: str) -> Callable[..., Any]:
    def rewrite(x: torch.Tensor, size: Any, scales: Any) -> Any:
        if scales is None or not any(map(_fraction, scales)):
            return NotImplemented
        sizes, scales = _sizes(x, size, scales, rank)
        return resized(x, sizes, scales, mode, corners=False, antialias=False)

    return rewrite


_aten = torch.ops.aten
REWRITE: dict[Any, Any] = {
    _aten._upsample_bilinear2d_aa.default: _antialiased("linear"),
    _aten._upsample_bilinear2d_aa.vec: _antialiased("linear"),
    _aten._upsample_bicubic2d_aa.default: _antialiased("cubic"),
    _aten._upsample_bicubic2d_aa.vec: _antialiased("cubic"),
    _aten.upsample_nearest1d.vec: _by_fraction(1, "nearest"),
    _aten.upsample_nearest2d.vec: _by_fraction(2, "nearest"),
    _aten.upsample_nearest3d.vec: _by_fraction(3, "nearest"),
    _aten._upsample_nearest_exact1d.vec: _by_fraction(1, "nearest-exact"),
    _aten._upsample_nearest_exact2d.vec: _by_fraction(2, "nearest-exact"),
    _aten._upsample_nearest_exact3d.vec: _by_fraction(3, "nearest-exact"),
}
