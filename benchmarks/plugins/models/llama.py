"""A decoder block of Llama's shape: 768 wide, 12 heads of 64, 4 of keys and values, 2048 within."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import aot

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from tests.plugins.models.llama import Block, angles

HIDDEN, HEADS, HEAD = 768, 12, 64
SIZES = ({"batch": 1, "length": 128}, {"batch": 1, "length": 2048}, {"batch": 8, "length": 512})
PROFILE = {"batch": (1, 1, 8), "length": (1, 512, 2048)}
SMALL = {"batch": (1, 1, 2), "length": (1, 8, 32)}
batch, length = aot.Dim("batch", min=1, opt=1, max=8), aot.Dim("length", min=1, opt=512, max=2048)


def inputs(sizes: dict[str, int]) -> dict[str, torch.Tensor]:
    """Hidden states without padding."""
    shape = (sizes["batch"], sizes["length"])
    cos, sin = angles(shape[1], HEAD)
    states = {name: torch.randn(*shape, HIDDEN) for name in ("hidden", "residual")}
    return {**states, "mask": torch.zeros(shape), "cos": cos, "sin": sin}


@aot.model(
    inputs={
        **{name: aot.Input([batch, length, HIDDEN]) for name in ("hidden", "residual")},
        "mask": aot.Input([batch, length]),
        **{name: aot.Input([length, HEAD]) for name in ("cos", "sin")},
    },
    outputs=["y", "total"],
)
def llama() -> torch.nn.Module:
    """The block."""
    torch.manual_seed(0)
    return Block(HIDDEN, HEADS, 4, 2048).eval()
