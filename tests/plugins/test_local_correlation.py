"""Local correlation, against what RAFT and PWC-Net do: a volume of all pairs and grid_sample, and shifted maps."""

from __future__ import annotations

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

RADIUS = 2


def given(batch: int, height: int = 4, width: int = 6) -> list[torch.Tensor]:
    """Two maps of 7 channels, the second of half the size, and coordinates in it, of which some lie outside."""
    generator = torch.Generator().manual_seed(batch)
    first = torch.randn(batch, 7, height, width, generator=generator)
    second = torch.randn(batch, 7, (height + 1) // 2, (width + 1) // 2, generator=generator)
    return [first, second, torch.rand(batch, 2, height, width, generator=generator) * (width / 2 + 4) - 2]


def last(first: torch.Tensor, second: torch.Tensor, coordinates: torch.Tensor) -> list[torch.Tensor]:
    return [first.permute(0, 2, 3, 1), second.permute(0, 2, 3, 1), coordinates]


def lookup(first: torch.Tensor, second: torch.Tensor, coordinates: torch.Tensor, radius: int) -> torch.Tensor:
    """RAFT: all pairs, then a window read from each pixel's map with grid_sample, x in the outer loop."""
    batch, channels, height, width = first.shape
    rows, columns = second.shape[2:]
    volume = torch.einsum("bchw,bcrs->bhwrs", first, second).reshape(-1, 1, rows, columns) / channels**0.5
    step = torch.arange(-radius, radius + 1.0)
    dx, dy = torch.meshgrid(step, step, indexing="ij")
    place = coordinates.permute(0, 2, 3, 1).reshape(-1, 1, 1, 2) + torch.stack((dx, dy), -1)
    grid = (2 * place + 1) / torch.tensor([columns, rows]) - 1
    found = F.grid_sample(volume, grid, align_corners=False)
    return found.reshape(batch, height, width, -1).permute(0, 3, 1, 2)


def shifted(first: torch.Tensor, second: torch.Tensor, radius: int) -> torch.Tensor:
    """PWC-Net: the second map shifted by whole pixels, y in the outer loop."""
    height, width = first.shape[2:]
    padded = F.pad(second, [radius] * 4)
    steps = range(2 * radius + 1)
    return torch.stack([(first * padded[:, :, i : i + height, j : j + width]).mean(1) for i in steps for j in steps], 1)


def pixels(batch: int, height: int, width: int) -> torch.Tensor:
    """The coordinates of the pixels themselves."""
    y, x = torch.meshgrid(torch.arange(float(height)), torch.arange(float(width)), indexing="ij")
    return torch.stack((x, y)).expand(batch, 2, height, width)


def whole() -> tuple[torch.Tensor, torch.Tensor]:
    """Two maps of one size and 5 channels."""
    first, second = (torch.randn(2, 5, 3, 9, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    return first, second


RAFT = {"radius": RADIUS, "scale": 7**-0.5, "x_first": True}
PWC = {"radius": 4, "scale": 1 / 5, "x_first": False}


@pytest.fixture(scope="module")
def kernels() -> list[torch.Tensor]:
    return interpreted("local_correlation", [(last(*given(2)), RAFT), (last(*whole(), pixels(2, 3, 9)), PWC)])


def test_kernel_and_reference_are_rafts_lookup(kernels: list[torch.Tensor]) -> None:
    right = lookup(*given(2), RADIUS)
    torch.testing.assert_close(kernels[0], right, rtol=1e-5, atol=1e-5)
    eager = aot.ops.local_correlation(*last(*given(2)), *RAFT.values())
    torch.testing.assert_close(eager, right, rtol=1e-5, atol=1e-5)


def test_kernel_and_reference_are_pwc_nets_cost_volume(kernels: list[torch.Tensor]) -> None:
    right = shifted(*whole(), 4)
    torch.testing.assert_close(kernels[1], right, rtol=1e-5, atol=1e-6)
    eager = aot.ops.local_correlation(*last(*whole(), pixels(2, 3, 9)), *PWC.values())
    torch.testing.assert_close(eager, right, rtol=1e-5, atol=1e-6)


def test_a_radius_that_no_block_holds_is_refused() -> None:
    with pytest.raises(PluginError, match="radius is 16, and may be 0 to 15"):
        aot.ops.local_correlation(*last(*given(1)), 16)


class Looked(nn.Module):
    """The finest level of RAFT's lookup."""

    def forward(self, first: torch.Tensor, second: torch.Tensor, coordinates: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = aot.ops.local_correlation(*last(first, second, coordinates), RADIUS, 7**-0.5, True)
        return y


BATCH, HEIGHT, WIDTH = Dim("batch", min=1, opt=2, max=8), Dim("h", min=2, opt=4, max=16), Dim("w", min=2, opt=6, max=16)
ROWS, COLUMNS = Dim("rows", min=1, opt=2, max=8), Dim("columns", min=1, opt=3, max=8)
SPEC = ModelSpec(
    "looked",
    {
        "first": Input([BATCH, 7, HEIGHT, WIDTH]),
        "second": Input([BATCH, 7, ROWS, COLUMNS]),
        "coordinates": Input([BATCH, 2, HEIGHT, WIDTH]),
    },
)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    write_module(Looked(), SPEC, folder)
    return folder / "model.onnx"


@pytest.mark.slow
def test_tensorrt_rtx_builds_the_function_in_its_place(exported: Path, tmp_path: Path) -> None:
    assert built(exported, SPEC, ["local_correlation"], tmp_path)


def test_as_a_function_in_onnx_it_gives_the_same_at_any_size(exported: Path) -> None:
    session = onnxruntime.InferenceSession(exported)
    for sizes in ((1, 2, 3), (3, 7, 5)):
        inputs = given(*sizes)
        feed = {one.name: value.numpy() for one, value in zip(session.get_inputs(), inputs, strict=True)}
        (got,) = session.run(None, feed)
        torch.testing.assert_close(torch.from_numpy(got), lookup(*inputs, RADIUS), rtol=1e-4, atol=1e-5)
