"""An encoder layer of Deformable DETR over two feature maps, as one declares it for aot."""

from __future__ import annotations

import torch
from torch import nn

import aot

WIDTH, HEADS, POINTS = 32, 4, 3
Maps = tuple[tuple[int, int], ...]
MAPS: Maps = ((6, 8), (3, 4))
"""(rows, columns) of each level."""


class Deformable(nn.Module):
    """Multi-scale deformable self-attention: every pixel of every level reads a few places of every level."""

    shapes: torch.Tensor
    starts: torch.Tensor
    centres: torch.Tensor

    def __init__(self, width: int, heads: int, points: int, maps: Maps) -> None:
        super().__init__()
        self.heads, self.levels, self.points = heads, len(maps), points
        each = heads * len(maps) * points
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.offsets, self.weights = nn.Linear(width, 2 * each), nn.Linear(width, each)
        shapes = torch.tensor(maps)
        sizes = shapes.prod(1)
        self.register_buffer("shapes", shapes)
        self.register_buffer("starts", sizes.cumsum(0) - sizes)
        centres = [
            torch.stack(((at % columns + 0.5) / columns, (at // columns + 0.5) / rows), -1)
            for rows, columns in maps
            for at in (torch.arange(rows * columns),)
        ]
        self.register_buffer("centres", torch.cat(centres)[:, None, None, None])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [batch, positions, width]."""
        value = self.value(x).unflatten(-1, (self.heads, -1))
        offsets = self.offsets(x).unflatten(-1, (self.heads, self.levels, self.points, 2))
        locations = self.centres + offsets / self.shapes.flip(1)[:, None]
        shares = self.weights(x).unflatten(-1, (self.heads, -1)).softmax(-1)
        weights = shares.unflatten(-1, (self.levels, self.points))
        y: torch.Tensor = self.out(aot.ops.ms_deform_attn(value, self.shapes, self.starts, locations, weights))
        return y


class Encoder(nn.Module):
    """One layer: attention and a feed-forward block, normalized after each."""

    def __init__(self, width: int = WIDTH, heads: int = HEADS, points: int = POINTS, maps: Maps = MAPS) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = Deformable(width, heads, points, maps)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.wider = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [batch, positions, width], the maps of all levels one behind the other."""
        x = self.norms[0](x + self.attention(x))
        y: torch.Tensor = self.norms[1](x + self.wider(x))
        return y


@aot.model(inputs={"x": aot.Input([aot.Dim("batch", min=1, opt=2, max=5), sum(r * c for r, c in MAPS), WIDTH])})
def encoder() -> nn.Module:
    return Encoder().eval()
