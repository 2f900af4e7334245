"""Linear algebra of small matrices, written out: inverse, solve, determinant, Cholesky.

ONNX has an op for the determinant alone, and TensorRT for none of them. Up to LARGEST rows, which covers poses,
homographies, camera matrices and covariances, the elimination is a fixed number of steps. Matrices [..., n, n] of any
batch; where torch raises, for one that is singular or not positive definite, the result here is infinite or NaN.
"""

from __future__ import annotations

from typing import Any

import torch

LARGEST = 8

Eliminated = tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]


def _is_small(a: torch.Tensor) -> bool:
    return isinstance(a.shape[-1], int) and a.shape[-1] <= LARGEST


def _checked(a: torch.Tensor, what: str) -> int:
    if not _is_small(a):
        raise NotImplementedError(f"{what} of matrices with more than {LARGEST} rows, or a dynamic number of them")
    return int(a.shape[-1])


def _eliminated(a: torch.Tensor, b: torch.Tensor) -> Eliminated:
    """Gauss-Jordan elimination with partial pivoting: x of a x = b, the pivots, and the sign of the row exchanges.

    a [..., n, n], b [..., n, m]; a pivot and the sign are [..., 1].
    """
    rows = a.shape[-1]
    held = torch.cat([a, b], -1)
    index = torch.arange(rows)
    sign = torch.ones_like(a[..., 0, :1])
    pivots = []
    for step in range(rows):
        left = torch.where(index < step, -1.0, held[..., step].abs())
        place = left.argmax(-1, keepdim=True)
        chosen = (index == place)[..., None]
        row = torch.where(chosen, held, 0.0).sum(-2, keepdim=True)
        pivot = row[..., step]
        sign = torch.where(place == step, sign, -sign)
        pivots.append(pivot)
        held = torch.where(chosen, held[..., step : step + 1, :], held)  # the exchange: the other half is below
        row = row / pivot[..., None]
        rest = held - held[..., step : step + 1] * row
        held = torch.where((index == step)[:, None], row, rest)
    return held[..., rows:], pivots, sign


def _solved(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """x of a x = b; leading axes broadcast."""
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])  # type: ignore[no-untyped-call]
    return _eliminated(a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:]))[0]


def _inverse(a: torch.Tensor) -> torch.Tensor:
    return _solved(a, torch.eye(_checked(a, "the inverse"), dtype=a.dtype))


def _solve(a: torch.Tensor, b: torch.Tensor, left: bool = True) -> torch.Tensor:
    """A b of one axis less than a, or of a's leading shape, holds vectors, as torch has it."""
    _checked(a, "the solution")
    if b.dim() == 1 or (a.dim() - 1 == b.dim() and b.shape == a.shape[:-1]):
        return _solved(a, b[..., None])[..., 0]
    return _solved(a, b) if left else _solved(a.mT, b.mT).mT


def _determinant(a: torch.Tensor) -> torch.Tensor:
    _checked(a, "the determinant")
    _, pivots, sign = _eliminated(a, a[..., :0])
    for pivot in pivots:
        sign = sign * pivot
    # Behind a pivot of zero everything is NaN.
    return torch.nan_to_num(sign, nan=0.0).squeeze(-1)


def _det(a: torch.Tensor) -> Any:
    return _determinant(a) if _is_small(a) else NotImplemented  # which is ONNX's op, for who has it


def _sign_and_log(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    determinant = _determinant(a)
    return determinant.sign(), determinant.abs().log()


def _cholesky(a: torch.Tensor, upper: bool = False) -> torch.Tensor:
    """Column by column, each taken out of what is left."""
    rows = _checked(a, "the Cholesky factor")
    index = torch.arange(rows)[:, None]
    columns = []
    for step in range(rows):
        column = a[..., step : step + 1] / a[..., step : step + 1, step : step + 1].sqrt()
        column = torch.where(index < step, 0.0, column)
        a = a - column * column.mT
        columns.append(column)
    factor = torch.cat(columns, -1)
    return factor.mT if upper else factor


def _triangular(
    a: torch.Tensor, b: torch.Tensor, upper: bool, left: bool = True, unitriangular: bool = False
) -> torch.Tensor:
    rows = _checked(a, "the solution")
    outside = int(unitriangular)
    a = a.triu(outside) if upper else a.tril(-outside)
    if unitriangular:
        a = a + torch.eye(rows, dtype=a.dtype)
    return _solved(a, b) if left else _solved(a.mT, b.mT).mT


def _cholesky_solve(b: torch.Tensor, factor: torch.Tensor, upper: bool = False) -> torch.Tensor:
    lower = factor.mT if upper else factor
    return _triangular(lower.mT, _triangular(lower, b, upper=False), upper=True)


def _fine(a: torch.Tensor) -> torch.Tensor:
    """torch's report on a batch of matrices: zeros."""
    return torch.zeros_like(a[..., 0, 0], dtype=torch.int32)


_aten = torch.ops.aten
REWRITE: dict[Any, Any] = {
    _aten.linalg_inv.default: _inverse,
    _aten.inverse.default: _inverse,
    _aten.linalg_inv_ex.default: lambda a, check=False: (_inverse(a), _fine(a)),
    _aten.linalg_solve.default: _solve,
    _aten.linalg_det.default: _det,
    _aten.det.default: _det,
    _aten.linalg_slogdet.default: _sign_and_log,
    _aten.slogdet.default: _sign_and_log,
    _aten.logdet.default: lambda a: _determinant(a).log(),
    _aten.linalg_cholesky.default: _cholesky,
    _aten.linalg_cholesky_ex.default: lambda a, upper=False, check=False: (_cholesky(a, upper), _fine(a)),
    _aten.linalg_solve_triangular.default: _triangular,
    _aten.cholesky_solve.default: _cholesky_solve,
}
