"""A block of Mamba (Gu and Dao 2023, arXiv:2312.00752, figure 3), for any number of tokens."""

import math

import torch
from torch import nn
from torch.nn import functional

import aot

batch = aot.Dim("batch", min=1, opt=2, max=4)
length = aot.Dim("length", min=1, opt=24, max=96)


class Block(nn.Module):
    """[batch, length, width] to the same: mixed along the length, gated, and added to the input."""

    def __init__(self, width: int = 16, expand: int = 2, states: int = 8, taps: int = 4) -> None:
        super().__init__()
        inner, self.rank, self.states = expand * width, math.ceil(width / 16), states
        self.norm = nn.RMSNorm(width)
        self.into = nn.Linear(width, 2 * inner, bias=False)
        self.conv = nn.Conv1d(inner, inner, taps, groups=inner)
        self.select = nn.Linear(inner, self.rank + 2 * states, bias=False)
        self.step = nn.Linear(self.rank, inner)
        self.a_log = nn.Parameter(torch.arange(1.0, states + 1).log().repeat(inner, 1))
        self.skip = nn.Parameter(torch.ones(inner))
        self.out = nn.Linear(inner, width, bias=False)
        # Steps of 0.001 to 0.1 at first, as in the paper.
        first = torch.exp(torch.linspace(math.log(0.001), math.log(0.1), inner))
        self.step.bias.data = first + torch.log(-torch.expm1(-first))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u, z = self.into(self.norm(x)).chunk(2, -1)
        past = functional.pad(u.transpose(1, 2), (self.conv.kernel_size[0] - 1, 0))
        u = functional.silu(self.conv(past)).transpose(1, 2).contiguous()
        low, b, c = self.select(u).split([self.rank, self.states, self.states], -1)
        delta = functional.linear(low, self.step.weight)
        a = -torch.exp(self.a_log.float())
        y = aot.ops.selective_scan(u, delta, a, b, c, self.skip.float(), z, self.step.bias.float())
        return x + self.out(y)


@aot.model(inputs={"input": aot.Input([batch, length, 16])}, outputs=["y"])
def mamba() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block()).eval()
