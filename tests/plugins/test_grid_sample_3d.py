"""Sampling of volumes, against torch's own."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import onnxruntime
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import aot
from aot.declaration import Dim, Input, ModelSpec
from aot.errors import PluginError
from aot.frontend.export import write_module
from tests.plugins.engines import built
from tests.plugins.kernels import interpreted

ATTRIBUTES = list(product(("bilinear", "nearest"), ("zeros", "border"), (False, True)))
NAMES = ("mode", "padding_mode", "align_corners")


def given(batch: int, out: tuple[int, int, int] = (3, 2, 7)) -> tuple[torch.Tensor, torch.Tensor]:
    """A volume, channels first as torch has it, and places of which a third lie outside."""
    generator = torch.Generator().manual_seed(batch)
    x = torch.randn(batch, 3, 4, 5, 6, generator=generator)
    return x, torch.rand(batch, *out, 3, generator=generator) * 2.8 - 1.4


def halves() -> tuple[torch.Tensor, torch.Tensor]:
    """Voxels 0 to 4, which lie at -1, -0.5, 0, 0.5 and 1, and the four places between them."""
    grid = torch.zeros(1, 1, 1, 4, 3)
    grid[..., 0] = torch.tensor([-0.75, -0.25, 0.25, 0.75])
    return torch.arange(5.0).reshape(1, 1, 1, 1, 5), grid


def last(x: torch.Tensor, grid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The volume's channels last."""
    return x.permute(0, 2, 3, 4, 1).contiguous(), grid


@pytest.fixture(scope="module")
def kernels() -> dict[object, torch.Tensor]:
    calls = [(last(*given(2)), dict(zip(NAMES, one, strict=True))) for one in ATTRIBUTES]
    nearest = {"mode": "nearest", "align_corners": True}
    return dict(
        zip([*ATTRIBUTES, "halves"], interpreted("grid_sample_3d", [*calls, (last(*halves()), nearest)]), strict=True)
    )


@pytest.mark.parametrize("attributes", ATTRIBUTES, ids=str)
def test_kernel_and_reference_are_torchs_grid_sample(
    attributes: tuple[str, str, bool], kernels: dict[object, torch.Tensor]
) -> None:
    right = F.grid_sample(*given(2), *attributes).permute(0, 2, 3, 4, 1)
    torch.testing.assert_close(aot.ops.grid_sample_3d(*last(*given(2)), *attributes), right, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(kernels[attributes], right, rtol=1e-5, atol=1e-6)


def test_the_middle_between_two_voxels_goes_to_the_even_one(kernels: dict[object, torch.Tensor]) -> None:
    assert kernels["halves"].flatten().tolist() == [0, 2, 2, 4]
    assert aot.ops.grid_sample_3d(*last(*halves()), "nearest", "zeros", True).flatten().tolist() == [0, 2, 2, 4]


def test_modes_that_it_does_not_have_are_refused() -> None:
    with pytest.raises(PluginError, match="mode is 'bicubic', and may be 'bilinear' or 'nearest'"):
        aot.ops.grid_sample_3d(*last(*given(1)), "bicubic")


class Sampled(nn.Module):
    """Two ways of sampling: two functions."""

    def forward(self, x: torch.Tensor, grid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, grid = last(x, grid)
        return aot.ops.grid_sample_3d(x, grid), aot.ops.grid_sample_3d(x, grid, "nearest", "border", True)


BATCH, DEEP = Dim("batch", min=1, opt=2, max=8), Dim("deep", min=1, opt=3, max=9)
SPEC = ModelSpec("sampled", {"x": Input([BATCH, 3, 4, 5, 6]), "grid": Input([BATCH, DEEP, 2, 7, 3])})


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    write_module(Sampled(), SPEC, folder)
    return folder / "model.onnx"


def test_tensorrt_rtx_builds_the_function_in_its_place(exported: Path, tmp_path: Path) -> None:
    assert built(exported, SPEC, ["grid_sample_3d"], tmp_path)


def test_as_a_function_in_onnx_it_gives_the_same_at_any_size(exported: Path) -> None:
    session = onnxruntime.InferenceSession(exported)
    for size, depth in ((1, 1), (3, 5)):
        x, grid = given(size, (depth, 2, 7))
        got = session.run(None, {"x": x.numpy(), "grid": grid.numpy()})
        right = F.grid_sample(x, grid, align_corners=False), F.grid_sample(x, grid, "nearest", "border", True)
        for one, other in zip(got, right, strict=True):
            torch.testing.assert_close(torch.from_numpy(one), other.permute(0, 2, 3, 4, 1), rtol=1e-5, atol=1e-6)
