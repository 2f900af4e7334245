"""A block of Mamba: 768 wide, 1536 within, 16 states, as in the 130M model."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import aot

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from tests.plugins.models.mamba import Block

SIZES = ({"batch": 1, "length": 256}, {"batch": 1, "length": 2048}, {"batch": 8, "length": 1024})
PROFILE = {"batch": (1, 1, 8), "length": (1, 1024, 2048)}
SMALL = {"batch": (1, 1, 2), "length": (1, 16, 48)}
batch, length = aot.Dim("batch", min=1, opt=1, max=8), aot.Dim("length", min=1, opt=1024, max=2048)


def inputs(sizes: dict[str, int]) -> dict[str, torch.Tensor]:
    """Tokens' states."""
    return {"input": torch.randn(sizes["batch"], sizes["length"], 768)}


@aot.model(inputs={"input": aot.Input([batch, length, 768])}, outputs=["y"])
def mamba() -> torch.nn.Module:
    """The block."""
    torch.manual_seed(0)
    return torch.nn.Sequential(Block(768, states=16)).eval()
