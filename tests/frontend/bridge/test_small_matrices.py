"""Linear algebra of small matrices against torch's own, in FP64, where both have all their digits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from aot.declaration import Dim, Input, ModelSpec
from aot.errors import ExportError
from aot.frontend.bridge.matrix_exp import REWRITE as EXPONENTIAL
from aot.frontend.bridge.small_matrices import LARGEST, REWRITE
from aot.frontend.export import write_module

aten = torch.ops.aten


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def positive(rows: int) -> torch.Tensor:
    a = random(5, rows, rows)
    return a @ a.mT + torch.eye(rows, dtype=torch.float64)


def agrees(op: Any, *given: Any) -> None:
    torch.testing.assert_close({**REWRITE, **EXPONENTIAL}[op](*given), op(*given), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("rows", range(1, LARGEST + 1))
def test_every_function_gives_what_torch_gives(rows: int) -> None:
    a, b = random(5, rows, rows), random(5, rows, 3)
    factor = torch.linalg.cholesky(positive(rows))
    for op in (aten.linalg_inv.default, aten.linalg_det.default, aten.linalg_slogdet.default):
        agrees(op, a)
    agrees(aten.linalg_solve.default, a, b)
    agrees(aten.linalg_cholesky.default, positive(rows))
    agrees(aten.logdet.default, positive(rows))
    agrees(aten.cholesky_solve.default, b, factor)
    agrees(aten.cholesky_solve.default, b, factor.mT, True)
    for upper in (False, True):
        for unit in (False, True):
            held = torch.linalg.solve_triangular(factor.mT if upper else factor, b, upper=upper, unitriangular=unit)
            got = REWRITE[aten.linalg_solve_triangular.default](factor.mT if upper else factor, b, upper, True, unit)
            torch.testing.assert_close(got, held, rtol=1e-8, atol=1e-8)


def test_the_largest_of_a_column_is_the_pivot() -> None:
    for a in (
        [[0.0, 2.0], [1.0, 0.0]],
        [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]],
        [[1e-20, 1.0], [1.0, 1.0]],
    ):
        agrees(aten.linalg_inv.default, torch.tensor(a))
        agrees(aten.linalg_det.default, torch.tensor(a))


def test_the_determinant_of_a_singular_matrix_is_zero() -> None:
    agrees(aten.linalg_det.default, torch.zeros(2, 4, 4))
    agrees(aten.linalg_slogdet.default, torch.zeros(2, 4, 4))


@pytest.mark.parametrize(
    ("a", "b", "left"),
    [
        pytest.param((3, 3), (3,), True, id="a vector"),
        pytest.param((5, 3, 3), (5, 3), True, id="a batch of vectors"),
        pytest.param((3, 3), (5, 3, 2), True, id="one matrix for all"),
        pytest.param((5, 3, 3), (2, 3), False, id="from the right"),
    ],
)
def test_the_right_side_may_have_any_of_torchs_shapes(a: tuple[int, ...], b: tuple[int, ...], left: bool) -> None:
    want = torch.linalg.solve(random(*a), random(*b), left=left)
    torch.testing.assert_close(REWRITE[aten.linalg_solve.default](random(*a), random(*b), left), want)


@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 7.0, 90.0])
def test_the_exponential_of_small_and_large_matrices(scale: float) -> None:
    turn = random(5, 4, 4)
    for a in (turn - turn.mT, -turn @ turn.mT):
        torch.testing.assert_close(
            EXPONENTIAL[aten.linalg_matrix_exp.default](a * scale), torch.matrix_exp(a * scale), rtol=1e-5, atol=1e-6
        )


class Applied(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def test_larger_matrices_are_refused_at_the_line(tmp_path: Path) -> None:
    size = LARGEST + 1
    spec = ModelSpec("model", {"x": Input([Dim("batch", min=1, opt=2, max=4), size, size])})
    with pytest.raises(ExportError, match="the inverse of matrices with more than 8 rows") as caught:
        write_module(Applied(torch.linalg.inv).eval(), spec, tmp_path)
    assert str(caught.value.where).endswith("return self.function(x)")
