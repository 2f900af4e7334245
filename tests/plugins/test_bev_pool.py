"""Bird's-eye-view pooling, against a loop over the points."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import aot
from aot.declaration import Dim, Input, ModelSpec
from aot.frontend.export import write_module
from tests.plugins.engines import built
from tests.plugins.kernels import interpreted

BATCH = Dim("batch", min=1, opt=2, max=8)
CAMERAS, BINS, ROWS, COLUMNS, CELLS, CHANNELS = 2, 5, 3, 4, 16, 6


def geometry() -> torch.Tensor:
    """The cell of each bin of depth [cameras, bins, rows, columns], -1 for outside; some cells are empty, one holds a
    third of all points."""
    cell = torch.randint(-4, CELLS, (CAMERAS, BINS, ROWS, COLUMNS), generator=torch.Generator().manual_seed(0))
    cell[cell % 5 == 4] = -1
    cell[cell % 3 == 1] = 7
    return cell


def constants(cell: torch.Tensor, cells: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """ranks_depth, ranks_features and starts, as the plugin's docstring makes them."""
    bins, pixels = cell.shape[1], cell.shape[2] * cell.shape[3]
    order = cell.flatten().argsort(stable=True)
    ranks_depth = order[cell.flatten()[order] >= 0].int()
    ranks_features = ranks_depth // (bins * pixels) * pixels + ranks_depth % pixels
    starts = torch.searchsorted(cell.flatten()[ranks_depth], torch.arange(cells + 1), out_int32=True)
    return ranks_depth, ranks_features, starts


def given(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Depth [batch, cameras, bins, rows, columns], features [batch, cameras, rows, columns, channels]."""
    generator = torch.Generator().manual_seed(batch)
    depth = torch.rand(batch, CAMERAS, BINS, ROWS, COLUMNS, generator=generator)
    return depth, torch.randn(batch, CAMERAS, ROWS, COLUMNS, CHANNELS, generator=generator)


def flat(depth: torch.Tensor, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return depth.flatten(1), features.flatten(1, 3)


def loop(depth: torch.Tensor, features: torch.Tensor) -> np.ndarray:
    """Every bin of every camera is added to its cell, in FP64; no ranks."""
    y = np.zeros((len(depth), CELLS, CHANNELS))
    for (camera, bin_, row, column), cell in np.ndenumerate(geometry().numpy()):
        if cell >= 0:
            weight = depth[:, camera, bin_, row, column, None].double()
            y[:, cell] += (weight * features[:, camera, row, column].double()).numpy()
    return y


def test_kernel_and_reference_add_every_point_to_its_cell() -> None:
    inputs = given(3)
    right = loop(*inputs)
    assert 0 < (right == 0).all((0, 2)).sum() < CELLS  # some cells are empty
    ranks = constants(geometry(), CELLS)
    (kernel,) = interpreted("bev_pool", [((*flat(*inputs), *ranks), {})])
    np.testing.assert_allclose(kernel, right, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(aot.ops.bev_pool(*flat(*inputs), *ranks), right, rtol=1e-5, atol=1e-6)


def test_geometry_of_its_own_for_each_sample_is_one_batch_of_more_cells() -> None:
    depth, features = given(2)
    cell = geometry()[None].repeat(2, 1, 1, 1, 1)
    cell[1] = torch.where(cell[1] >= 0, cell[1] + CELLS, -1)
    ranks = constants(cell.flatten(0, 1), 2 * CELLS)
    y = aot.ops.bev_pool(depth.reshape(1, -1), features.reshape(1, -1, CHANNELS), *ranks)
    np.testing.assert_allclose(y.reshape(2, CELLS, CHANNELS), loop(depth, features), rtol=1e-5, atol=1e-6)


def test_a_long_sum_loses_nothing_to_what_comes_before_it() -> None:
    """A difference of running sums would: here they reach 1e7, and the second cell holds 1."""
    depth = torch.tensor([[1e7, 1.0]])
    ranks = torch.tensor([0] * 100 + [1], dtype=torch.int32)
    starts = torch.tensor([0, 100, 101], dtype=torch.int32)
    y = aot.ops.bev_pool(depth, torch.ones(1, 1, 1), ranks, torch.zeros(101, dtype=torch.int32), starts)
    assert y.flatten().tolist() == [1e9, 1.0]


def test_ranges_of_any_length_and_place_are_added_up() -> None:
    """Thousands of points: sums of sixteen, of sixteen of those, and so on."""
    generator = torch.Generator().manual_seed(0)
    depth, features = torch.rand(2, 300, generator=generator), torch.randn(2, 50, 3, generator=generator)
    depths, pixels = (torch.randint(0, n, (5000,), generator=generator, dtype=torch.int32) for n in (300, 50))
    products = (depth[:, depths, None] * features[:, pixels]).double()
    for ends in ([0, 5000], [3, 4, 4, 4099, 4115, 5000], [0, 16, 256, 4096, 4097]):
        y = aot.ops.bev_pool(depth, features, depths, pixels, torch.tensor(ends, dtype=torch.int32))
        right = torch.stack([products[:, a:b].sum(1) for a, b in pairwise(ends)], 1)
        torch.testing.assert_close(y.double(), right, rtol=1e-5, atol=1e-4)


class Pooled(nn.Module):
    """Cameras are fixed, so ranks are constants."""

    def __init__(self) -> None:
        super().__init__()
        for name, value in zip(("depths", "pixels", "starts"), constants(geometry(), CELLS), strict=True):
            self.register_buffer(name, value)

    def forward(self, depth: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        y = aot.ops.bev_pool(*flat(depth, features), self.depths, self.pixels, self.starts)
        return y.transpose(1, 2).unflatten(2, (4, 4))  # [batch, channels, 4, 4]


SPEC = ModelSpec(
    "pooled",
    {
        "depth": Input([BATCH, CAMERAS, BINS, ROWS, COLUMNS]),
        "features": Input([BATCH, CAMERAS, ROWS, COLUMNS, CHANNELS]),
    },
)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    write_module(Pooled(), SPEC, folder)
    return folder / "model.onnx"


@pytest.mark.slow
def test_tensorrt_rtx_builds_the_function_in_its_place(exported: Path, tmp_path: Path) -> None:
    assert built(exported, SPEC, ["bev_pool"], tmp_path)


def test_as_a_function_in_onnx_it_gives_the_same_at_any_size(exported: Path) -> None:
    session = onnxruntime.InferenceSession(exported)
    for size in (1, 3):
        depth, features = given(size)
        (got,) = session.run(None, {"depth": depth.numpy(), "features": features.numpy()})
        right = loop(depth, features).transpose(0, 2, 1).reshape(size, CHANNELS, 4, 4)
        np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-6)


class Ranked(nn.Module):
    """The ranks are inputs: how many there are varies."""

    def forward(
        self,
        depth: torch.Tensor,
        features: torch.Tensor,
        depths: torch.Tensor,
        pixels: torch.Tensor,
        starts: torch.Tensor,
    ) -> torch.Tensor:
        y: torch.Tensor = aot.ops.bev_pool(depth, features, depths, pixels, starts)
        return y


def test_points_that_vary_in_number_are_all_added(tmp_path: Path) -> None:
    points, ends = Dim("points", min=1, opt=50, max=200), Dim("ends", min=2, opt=17, max=64)
    depth, features = flat(*given(1))
    spec = ModelSpec(
        "ranked",
        {
            "depth": Input(list(depth.shape)),
            "features": Input(list(features.shape)),
            "depths": Input([points], dtype="int32"),
            "pixels": Input([points], dtype="int32"),
            "starts": Input([ends], dtype="int32"),
        },
    )
    write_module(Ranked(), spec, tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    names = ("depth", "features", "depths", "pixels", "starts")
    inputs = (depth, features, *constants(geometry(), CELLS))
    (got,) = session.run(None, {name: value.numpy() for name, value in zip(names, inputs, strict=True)})
    np.testing.assert_allclose(got, loop(*given(1)), rtol=1e-5, atol=1e-6)
