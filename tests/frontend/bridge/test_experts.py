"""Grouped products say the same as one product for each expert, however many rows each has."""

from __future__ import annotations

import pytest
import torch

from aot.frontend.bridge import experts


@pytest.mark.parametrize("ends", [[2, 5, 7], [0, 7, 7], [7, 7, 7], [0, 0, 4]], ids=str)
def test_every_row_meets_the_matrix_of_its_expert(ends: list[int]) -> None:
    x, weight = torch.randn(7, 3), torch.randn(3, 3, 5)
    expected, start = torch.zeros(7, 5), 0
    for expert, end in enumerate(ends):
        expected[start:end] = x[start:end] @ weight[expert]
        start = end
    torch.testing.assert_close(experts.grouped(x, weight, torch.tensor(ends, dtype=torch.int32)), expected)
