"""Deformable convolution, against a plain loop and against torchvision's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import aot
from aot.declaration import Dim, Input, ModelSpec
from aot.errors import PluginError
from aot.frontend.export import write_module
from tests.plugins.engines import built
from tests.plugins.kernels import interpreted


@dataclass(frozen=True)
class Case:
    """A convolution of 9 x 8 pixels; pairs are (rows, columns)."""

    batch: int
    channels: int
    out_channels: int
    groups: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)

    def inputs(self) -> list[torch.Tensor]:
        """x, offset, mask, weight and bias as torchvision takes them."""
        taps = self.kernel[0] * self.kernel[1]
        out = [
            (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
            for size, kernel, stride, padding, dilation in zip(
                (9, 8), self.kernel, self.stride, self.padding, self.dilation, strict=True
            )
        ]
        generator = torch.Generator().manual_seed(self.channels)
        shapes = (
            (self.batch, self.channels, 9, 8),
            (self.batch, 2 * self.groups * taps, *out),
            (self.batch, self.groups * taps, *out),
            (self.out_channels, self.channels, *self.kernel),
            (self.out_channels,),
        )
        x, offset, mask, weight, bias = (torch.randn(shape, generator=generator) for shape in shapes)
        return [x, 2 * offset, mask.sigmoid(), weight, bias]

    def attributes(self) -> dict[str, int]:
        pairs = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}
        return {f"{name}_{side}": pair[i] for name, pair in pairs.items() for i, side in enumerate("hw")}


CASES = (
    Case(2, 6, 5, 1, (3, 3), padding=(1, 1)),
    Case(1, 4, 3, 2, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2)),
    Case(1, 3, 2, 3, (1, 1), stride=(2, 3)),
    Case(1, 70, 3, 2, (1, 2)),
)


def last(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The same with the channels of x and weight last."""
    x, offset, mask, weight, bias = inputs
    return [x.permute(0, 2, 3, 1), offset, mask, weight.permute(0, 2, 3, 1), bias]


def of_case(case: Case) -> torch.Tensor:
    """What the op makes of a case, channels first."""
    y: torch.Tensor = aot.ops.deform_conv2d(*last(case.inputs()), *case.attributes().values())
    return y.permute(0, 3, 1, 2)


def loop(case: Case) -> np.ndarray:
    """Pixel by pixel, in FP64."""
    x, offset, mask, weight, bias = (tensor.double().numpy() for tensor in case.inputs())
    taps, of_group = case.kernel[0] * case.kernel[1], case.channels // case.groups
    y = np.zeros((case.batch, case.out_channels, *offset.shape[2:]))
    for b, o, p, q in np.ndindex(*y.shape):
        y[b, o, p, q] = bias[o]
        for c, i, j in np.ndindex(case.channels, *case.kernel):
            slot = c // of_group * taps + i * case.kernel[1] + j
            row = p * case.stride[0] - case.padding[0] + i * case.dilation[0] + offset[b, 2 * slot, p, q]
            column = q * case.stride[1] - case.padding[1] + j * case.dilation[1] + offset[b, 2 * slot + 1, p, q]
            near = [(int(np.floor(row)) + i, int(np.floor(column)) + j) for i in (0, 1) for j in (0, 1)]
            read = sum(
                x[b, c, r, s] * (1 - abs(row - r)) * (1 - abs(column - s))
                for r, s in near
                if 0 <= r < x.shape[2] and 0 <= s < x.shape[3]
            )
            y[b, o, p, q] += weight[o, c, i, j] * mask[b, slot, p, q] * read
    return y


@pytest.fixture(scope="module")
def kernels() -> list[torch.Tensor]:
    """Of every case with all taps of a block in turn, then with all blocks of a tap in turn."""
    inside = [(last(case.inputs()), case.attributes()) for case in CASES]
    return interpreted("deform_conv2d", inside + [(inputs, {**given, "config": 1}) for inputs, given in inside])


@pytest.mark.parametrize("place", range(len(CASES)))
def test_kernel_and_reference_are_the_formula_pixel_by_pixel(place: int, kernels: list[torch.Tensor]) -> None:
    right = loop(CASES[place])
    np.testing.assert_allclose(of_case(CASES[place]), right, rtol=1e-5, atol=1e-5)
    for y in kernels[place :: len(CASES)]:
        np.testing.assert_allclose(y.permute(0, 3, 1, 2), right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_torchvisions(case: Case) -> None:
    torchvision = pytest.importorskip("torchvision")
    x, offset, mask, weight, bias = case.inputs()
    right = torchvision.ops.deform_conv2d(x, offset, weight, bias, case.stride, case.padding, case.dilation, mask)
    torch.testing.assert_close(of_case(case), right, rtol=1e-5, atol=1e-5)


def test_channels_that_do_not_fit_together_are_refused() -> None:
    x, offset, mask, weight, bias = last(CASES[0].inputs())
    with pytest.raises(PluginError, match="x has 6 channels, offset 17 and mask 9; with 3 x 3 taps"):
        aot.ops.deform_conv2d(x, offset[:, 1:], mask, weight, bias)


class Deformed(nn.Module):
    """A layer as it is in a model: the offsets and the mask come from a convolution."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.planned = nn.Conv2d(4, 27, 3, padding=1)
        self.weight = nn.Parameter(torch.randn(5, 4, 3, 3))
        self.bias = nn.Parameter(torch.randn(5))

    def parts(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        planned = self.planned(x)
        return planned[:, :18], planned[:, 18:].sigmoid()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        offset, mask = self.parts(x)
        weight = self.weight.permute(0, 2, 3, 1)
        y: torch.Tensor = aot.ops.deform_conv2d(x.permute(0, 2, 3, 1), offset, mask, weight, self.bias, 1, 1, 1, 1)
        return y.permute(0, 3, 1, 2)


BATCH, SIDE = Dim("batch", min=1, opt=2, max=8), Dim("side", min=2, opt=5, max=16)
SPEC = ModelSpec("deformed", {"x": Input([BATCH, 4, SIDE, SIDE])})


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    write_module(Deformed(), SPEC, folder)
    return folder / "model.onnx"


def test_tensorrt_rtx_builds_the_function_in_its_place(exported: Path, tmp_path: Path) -> None:
    assert built(exported, SPEC, ["deform_conv2d"], tmp_path)


def test_as_a_function_in_onnx_it_gives_the_same_at_any_size(exported: Path) -> None:
    session = onnxruntime.InferenceSession(exported)
    for size, pixels in ((1, 2), (3, 7)):
        x = torch.randn(size, 4, pixels, pixels, generator=torch.Generator().manual_seed(size))
        (got,) = session.run(None, {"x": x.numpy()})
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(got), Deformed()(x), rtol=1e-4, atol=1e-5)
