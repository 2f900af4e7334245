"""What a trace holds for: conditions on sizes are judged over the declared ranges, not by torch's solver alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from aot.declaration import Dim, Input, ModelSpec
from aot.errors import ExportError
from aot.frontend.export import write_module

BATCH = Dim("batch", min=1, opt=2, max=8)


class Pair(nn.Module):
    """Two images through one network, as optical flow does it."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        both = self.features(torch.cat([one, other]))
        a, b = torch.chunk(both, 2, dim=0)
        return a * b + one.mean()


def test_inputs_of_one_dim_may_be_joined_along_it_and_parted_again(tmp_path: Path) -> None:
    module = Pair().eval()
    image = Input([BATCH, 3, 8, 8])
    write_module(module, ModelSpec("pair", {"one": image, "other": image}), tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert [value.shape for value in session.get_inputs()] == [["batch", 3, 8, 8]] * 2
    assert [value.shape for value in session.get_outputs()] == [["batch", 4, 8, 8]]
    random = np.random.default_rng(0)
    for batch in (1, 3, 8):
        case = {name: random.standard_normal((batch, 3, 8, 8), np.float32) for name in ("one", "other")}
        with torch.no_grad():
            want = module(**{name: torch.from_numpy(values) for name, values in case.items()})
        np.testing.assert_allclose(session.run(None, case)[0], want.numpy(), rtol=1e-5, atol=1e-5)


class Rounded(nn.Module):
    """Asks for ceil(2 n / n), which is 2 for every n, or for ceil((n + offset) / n)."""

    def __init__(self, offset: int | None = None) -> None:
        super().__init__()
        self.offset = offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        added = n if self.offset is None else self.offset
        if (n + added + n - 1) // n == 2:
            return x * 2
        return x


def test_a_condition_that_holds_for_every_declared_size_fixes_none(tmp_path: Path) -> None:
    write_module(Rounded(), ModelSpec("rounded", {"x": Input([BATCH, 3])}), tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert session.get_inputs()[0].shape == ["batch", 3]
    x = np.ones((7, 3), np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], 2 * x)


def test_one_that_does_not_is_told_with_its_line_and_the_ranges_that_work(tmp_path: Path) -> None:
    with pytest.raises(ExportError) as caught:
        write_module(Rounded(offset=4), ModelSpec("rounded", {"x": Input([BATCH, 3])}), tmp_path)
    assert "if (n + added + n - 1) // n == 2" in str(caught.value.where)
    assert "min=4, max=8" in str(caught.value.fix)
