"""The matrix exponential, by scaling and squaring.

exp(A) = exp(A / 2^s)^(2^s) (Moler and Van Loan, Nineteen dubious ways to compute the exponential of a matrix, 1978,
method 3). s follows each matrix's norm; the squarings are a fixed number, of which a matrix takes its last s.
"""

from __future__ import annotations

from typing import Any

import torch

SQUARINGS = 12
TERMS = 8
"""Of the series; for a norm of 1/2 the rest is below 1e-8."""


def _matrix_exp(a: torch.Tensor) -> torch.Tensor:
    """a [..., n, n]. A norm above 2^11 overflows FP32 anyway, unless the matrix is nearly skew."""
    norm = a.abs().sum(-2, keepdim=True).amax(-1, keepdim=True)
    halvings = torch.ceil(torch.log2(norm.clamp(min=0.5))).clamp(max=SQUARINGS - 1) + 1
    small = a * torch.exp2(-halvings)
    one = torch.eye(a.shape[-1], dtype=a.dtype)
    power = one + small / TERMS
    for term in range(TERMS - 1, 0, -1):
        power = one + torch.matmul(small, power) / term
    for step in range(SQUARINGS):
        power = torch.where(halvings > step, torch.matmul(power, power), power)
    return power


_aten = torch.ops.aten
REWRITE: dict[Any, Any] = {_aten.matrix_exp.default: _matrix_exp, _aten.linalg_matrix_exp.default: _matrix_exp}
