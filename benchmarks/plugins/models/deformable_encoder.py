"""An encoder layer of Deformable DETR, 256 wide, over four maps of a picture of 256 x 256 at strides 8 to 64."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import aot

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from tests.plugins.models.deformable_encoder import Encoder

MAPS = ((32, 32), (16, 16), (8, 8), (4, 4))
POSITIONS = sum(rows * columns for rows, columns in MAPS)
SIZES = ({"batch": 1}, {"batch": 4}, {"batch": 16})
PROFILE = {"batch": (1, 4, 16)}
SMALL = {"batch": (1, 1, 2)}


def inputs(sizes: dict[str, int]) -> dict[str, torch.Tensor]:
    """Pictures' features."""
    return {"x": torch.randn(sizes["batch"], POSITIONS, 256)}


@aot.model(inputs={"x": aot.Input([aot.Dim("batch", min=1, opt=4, max=16), POSITIONS, 256])}, outputs=["y"])
def deformable_encoder() -> torch.nn.Module:
    """The layer."""
    return Encoder(256, 8, 4, MAPS).eval()
