"""Products with as many matrices as there are experts, rows sorted by expert (mixtures of experts).

Imports torch; import it only where torch is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_aten = torch.ops.aten


def grouped(x: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """Row t of x, [rows, in], times the matrix of its expert, weight [experts, in, out]: [rows, out].

    offs[e], int, is where the rows of expert e end, so a row's expert is how many ends it has reached. Rows behind the
    last end are zero. The matrix of every row is gathered: rows · in · out values for a moment, but no row is computed
    for an expert that it does not have, and nothing depends on how many rows an expert has.
    """
    places = torch.arange(x.shape[0], device=x.device)
    passed = (places[:, None] >= offs[None, :]).sum(dim=1)
    chosen = weight[passed.clamp(max=weight.shape[0] - 1)]
    held = (passed < weight.shape[0])[:, None].to(x.dtype)
    return torch.matmul(x[:, None, :], chosen)[:, 0, :] * held


def _grouped_mm(x: torch.Tensor, weight: torch.Tensor, offs: Any = None, bias: Any = None, dtype: Any = None) -> Any:
    if x.dim() != 2 or weight.dim() != 3 or offs is None or bias is not None:
        return NotImplemented
    result = grouped(x, weight, offs)
    return result if dtype is None else result.to(dtype)


REWRITE: dict[Any, Any] = {_aten._grouped_mm.default: _grouped_mm}

# Custom operators whose own implementation reads the ends as numbers, by name.
BODIES: dict[str, Callable[..., Any]] = {"transformers::grouped_mm_fallback": grouped}
