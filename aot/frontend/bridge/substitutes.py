"""Functions of torch that decide by a size while they are captured, and their like that do not.

Some of torch's composite functions are written in C++ and read sizes as plain numbers (`linspace`, `kron`; up to torch
2.11 `quantile`), some branch on them (pooling with ceil_mode, `cdist`; up to torch 2.11 `pow`), and `interpolate` hands
its scale to the kernel as a number: the capture then holds for one size, or for some. Within `Substitutes` calls of
these with symbolic sizes go to functions that give the same values for every size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from aot.frontend.bridge import resize, scalars, searching, sorting


class Substitutes(TorchFunctionMode):
    """Use as a context around `torch.export.export`.

    What a function of the table calls in turn is not looked at, so the table names the outermost.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        replacement = _TABLE.get(func)
        if replacement is not None:
            result = replacement(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return func(*args, **kwargs)


def _symbolic(*values: Any) -> bool:
    """Whether a size among these, or among the sizes of a tensor, is not a plain number."""
    sizes = [s for v in values for s in (v.shape if isinstance(v, torch.Tensor) else v if _listed(v) else (v,))]
    return any(isinstance(size, torch.SymInt | torch.SymFloat) for size in sizes)


def _listed(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _linspace(start: Any, end: Any, steps: Any = None, **options: Any) -> Any:
    """From both ends towards the middle, as torch's kernel does, so that the end is exact."""
    if not _symbolic(steps) or isinstance(start, torch.Tensor) or isinstance(end, torch.Tensor):
        return NotImplemented
    dtype = options.pop("dtype", None) or torch.get_default_dtype()
    options.pop("out", None)
    place = torch.arange(steps, dtype=dtype, **options)
    step = (end - start) / torch.sym_max(steps - 1, 1)
    return torch.where(place < (steps + 1) // 2, start + step * place, end - step * (steps - 1 - place))


def _centers(length: Any, corners: bool) -> Any:
    """Where the pixels of an axis lie, from -1 to 1."""
    place = torch.arange(length, dtype=torch.float32)
    if corners:
        return place * (2.0 / torch.sym_max(length - 1, 1)) - torch.where(torch.full((), length) > 1, 1.0, 0.0)
    return (place * 2.0 + 1.0) / length - 1.0


def _affine_grid(theta: torch.Tensor, size: Sequence[Any], align_corners: bool | None = None) -> Any:
    """theta [B, R, R + 1], R = 2 or 3, to [B, (depth,) height, width, R]."""
    if not _symbolic(size):
        return NotImplemented
    axes = [_centers(length, bool(align_corners)).to(theta.dtype) for length in size[2:]]
    grids = torch.meshgrid(*axes, indexing="ij")
    points = torch.stack([*grids[::-1], torch.ones_like(grids[0])], -1)
    flat = torch.matmul(points.reshape(1, -1, points.shape[-1]), theta.transpose(1, 2))
    return flat.reshape(theta.shape[0], *size[2:], len(axes))


def _interpolate(
    input: torch.Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:
    """A scale that depends on sizes; the output is floor(length * scale), sampled by the scale itself."""
    scales = list(scale_factor) if _listed(scale_factor) else [scale_factor] * (input.dim() - 2)
    if size is not None or not any(isinstance(scale, torch.SymFloat) for scale in scales) or mode == "area":
        return NotImplemented
    sizes = [math.floor(length * scale) for length, scale in zip(input.shape[2:], scales, strict=True)]
    ratios = [None] * len(sizes) if recompute_scale_factor else scales
    kind = {"bilinear": "linear", "trilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    return resize.resized(input, sizes, ratios, kind, bool(align_corners), antialias)


def _cdist(x1: torch.Tensor, x2: torch.Tensor, p: float = 2.0, compute_mode: str | None = None) -> Any:
    if not _symbolic(x1, x2):
        return NotImplemented
    return searching.cdist(x1, x2, p)


def _quantile(input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    return sorting.quantile(input, *args, **kwargs) if _symbolic(input) else NotImplemented


def _indices(lower: bool) -> Callable[..., Any]:
    def made(row: Any, col: Any, offset: int = 0, **options: Any) -> Any:
        if not _symbolic(row, col):
            return NotImplemented
        down, across = torch.arange(row)[:, None], torch.arange(col)
        inside = across - down <= offset if lower else across - down >= offset
        found = inside.nonzero().t()
        return found.to(options["dtype"]) if options.get("dtype") else found

    return made


def _kron(a: torch.Tensor, b: torch.Tensor) -> Any:
    if not _symbolic(a, b):
        return NotImplemented
    rank = max(a.dim(), b.dim())
    a = a.reshape(*[1] * (rank - a.dim()), *a.shape)
    b = b.reshape(*[1] * (rank - b.dim()), *b.shape)
    product = a.reshape([n for size in a.shape for n in (size, 1)]) * b.reshape([n for s in b.shape for n in (1, s)])
    return product.reshape([m * n for m, n in zip(a.shape, b.shape, strict=True)])


def _take_along_dim(input: torch.Tensor, indices: torch.Tensor, dim: int | None = None) -> Any:
    if dim is None or not _symbolic(input, indices) or input.dim() != indices.dim():
        return NotImplemented
    at = dim % input.dim()
    wanted = [max(m, n) if 1 in (m, n) else m for m, n in zip(input.shape, indices.shape, strict=True)]
    source = input.expand([input.shape[at] if axis == at else size for axis, size in enumerate(wanted)])
    index = indices.expand([indices.shape[at] if axis == at else size for axis, size in enumerate(wanted)])
    return torch.gather(source, at, index)


def _per_axis(value: Any, rank: int) -> list[int]:
    given = list(value) if _listed(value) else [value]
    return given * rank if len(given) == 1 else given


def _max_pool(rank: int, pool: Callable[..., Any]) -> Callable[..., Any]:
    """Windows beyond the end: as many as a border of minus infinity, one stride less one wide, makes."""

    def rewrite(
        input: torch.Tensor,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        if not ceil_mode or return_indices or not _symbolic(input.shape[-rank:]):
            return NotImplemented
        kernel = _per_axis(kernel_size, rank)
        step = _per_axis(stride, rank) if stride not in ((), [], None) else kernel
        pad = _per_axis(padding, rank)
        wide = [d * (k - 1) + 1 for d, k in zip(_per_axis(dilation, rank), kernel, strict=True)]
        if _fits(wide, step, pad):
            return NotImplemented
        border = _border(pad, _beyond(wide, step, pad))
        return pool(functional.pad(input, border, value=float("-inf")), kernel, step, 0, dilation, False)

    return rewrite


def _avg_pool(rank: int, pool: Callable[..., Any]) -> Callable[..., Any]:
    """The sum over a window divided by how much of the input (and of its padding, where that counts) it covers."""

    def rewrite(
        input: torch.Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        if not ceil_mode or divisor_override is not None or not _symbolic(input.shape[-rank:]):
            return NotImplemented
        kernel = _per_axis(kernel_size, rank)
        step = _per_axis(stride, rank) if stride not in ((), [], None) else kernel
        pad = _per_axis(padding, rank)
        if _fits(kernel, step, pad):
            return NotImplemented
        beyond = _beyond(kernel, step, pad)
        rest = [end - p for end, p in zip(beyond, pad, strict=True)]
        covered = functional.pad(torch.ones_like(input), _border(pad, pad), value=float(count_include_pad))
        covered = functional.pad(covered, _border([0] * rank, rest))
        return pool(functional.pad(input, _border(pad, beyond)), kernel, step) / pool(covered, kernel, step)

    return rewrite


def _fits(wide: list[int], step: list[int], pad: list[int]) -> bool:
    """Whether no window can begin in the padding on the right, so that the branch torch has for it is never taken."""
    return all(p + s <= k for k, s, p in zip(wide, step, pad, strict=True))


def _beyond(wide: list[int], step: list[int], pad: list[int]) -> list[int]:
    """The border on the right with which pooling without ceil_mode has the windows of pooling with it.

    Those are as many as begin in the input or the padding on its left, and at most one more than fit.
    """
    return [min(p + s, k) - 1 for k, s, p in zip(wide, step, pad, strict=True)]


def _border(left: list[int], right: list[int]) -> list[int]:
    """As `pad` takes it: the last axis first, both sides of each."""
    return [n for pair in zip(left[::-1], right[::-1], strict=True) for n in pair]


_TABLE: dict[Any, Callable[..., Any]] = {
    torch.linspace: _linspace,
    functional.affine_grid: _affine_grid,
    functional.interpolate: _interpolate,
    torch.cdist: _cdist,
    torch.tril_indices: _indices(lower=True),
    torch.triu_indices: _indices(lower=False),
    torch.kron: _kron,
    torch.take_along_dim: _take_along_dim,
    **{name: _quantile for name in (torch.quantile, torch.Tensor.quantile)},
    **{name: scalars.power for name in (torch.pow, torch.Tensor.pow, torch.Tensor.__pow__)},
    torch.Tensor.__rpow__: lambda exponent, base: scalars.power(base, exponent),
    **{name: _max_pool(1, torch.max_pool1d) for name in (functional.max_pool1d, torch.max_pool1d)},
    **{name: _max_pool(2, torch.max_pool2d) for name in (functional.max_pool2d, torch.max_pool2d)},
    **{name: _max_pool(3, torch.max_pool3d) for name in (functional.max_pool3d, torch.max_pool3d)},
    torch.avg_pool1d: _avg_pool(1, torch.avg_pool1d),
    torch._C._nn.avg_pool2d: _avg_pool(2, torch._C._nn.avg_pool2d),
    torch._C._nn.avg_pool3d: _avg_pool(3, torch._C._nn.avg_pool3d),
}
