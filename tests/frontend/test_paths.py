"""The line at which forward goes another way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from aot.declaration import Dim, Input, ModelSpec
from aot.frontend.eager import Eager


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(3, 3)

    def forward(self, past: torch.Tensor) -> torch.Tensor:
        values = self.line(past)
        if past.shape[0] == 0:
            return values.sum() + torch.ones(3)
        return values.sum(0)


EAGER = Eager(Cached(), ModelSpec("cached", {"past": Input([Dim("past", min=0, opt=2, max=8), 3])}))


def batch(past: int) -> dict[str, np.ndarray]:
    return {"past": np.ones((past, 3), np.float32)}


def test_it_is_the_branch() -> None:
    said = EAGER.parting(batch(0), batch(4))
    assert said is not None
    assert said.startswith(str(Path(__file__)))
    assert said.endswith("in forward: if past.shape[0] == 0:")


def test_there_is_none_where_the_same_lines_run() -> None:
    assert EAGER.parting(batch(1), batch(4)) is None
