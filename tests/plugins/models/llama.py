"""A decoder block as Llama has it, written with the ops of plugins: what a user writes, and the same in plain torch.

Every product leaves a position's heads side by side, and every op takes them so: nothing is transposed.
"""

from __future__ import annotations

import torch
from torch import nn

import aot

HIDDEN, HEADS, KV_HEADS, INNER = 64, 4, 2, 96
HEAD = HIDDEN // HEADS


class Block(nn.Module):
    """hidden, residual [B, S, hidden], mask [B, S], cos and sin [S, head] -> hidden, residual."""

    def __init__(self, hidden: int = HIDDEN, heads: int = HEADS, kv_heads: int = KV_HEADS, inner: int = INNER) -> None:
        super().__init__()
        self.heads, self.head = heads, hidden // heads
        self.q = nn.Linear(hidden, hidden, bias=False)
        self.kv = nn.Linear(hidden, 2 * kv_heads * self.head, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.gate_up = nn.Linear(hidden, 2 * inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)
        self.attention_norm = nn.Parameter(torch.linspace(0.5, 1.5, hidden))
        self.mlp_norm = nn.Parameter(torch.linspace(1.5, 0.5, hidden))

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor, mask: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x, residual = aot.ops.add_rms_norm(hidden, residual, self.attention_norm)
        k, v = self.kv(x).chunk(2, -1)
        q, k = aot.ops.rotary(self.q(x), cos, sin), aot.ops.rotary(k, cos, sin)
        x = self.out(aot.ops.attention(q, k, v, mask, self.heads, True))
        x, residual = aot.ops.add_rms_norm(x, residual, self.mlp_norm)
        return self.down(aot.ops.swiglu(self.gate_up(x))), residual

    def plain(
        self, hidden: torch.Tensor, residual: torch.Tensor, mask: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same without plugins; in FP64 where the module and its inputs are."""
        residual = hidden + residual
        x = nn.functional.rms_norm(residual, self.attention_norm.shape, self.attention_norm, 1e-6)
        k, v = self.kv(x).chunk(2, -1)
        q, k, v = (one.unflatten(-1, (-1, self.head)).transpose(1, 2) for one in (self.q(x), k, v))
        half = self.head // 2
        q, k = (one * cos + torch.cat((-one[..., half:], one[..., :half]), -1) * sin for one in (q, k))
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        added = mask[:, None, None, :].expand(-1, 1, x.shape[1], -1).masked_fill(later, -torch.inf)
        y = nn.functional.scaled_dot_product_attention(q, k, v, added, enable_gqa=True)
        residual = residual + self.out(y.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(nn.functional.rms_norm(residual, self.mlp_norm.shape, self.mlp_norm, 1e-6)).chunk(2, -1)
        return self.down(nn.functional.silu(gate) * up), residual


def angles(length: int, head: int = HEAD) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [length, head] of rotary embedding with base 10000."""
    frequencies = 10000.0 ** (-torch.arange(0, head, 2) / head)
    angle = (torch.arange(length)[:, None] * frequencies[None, :]).repeat(1, 2)
    return angle.cos(), angle.sin()
