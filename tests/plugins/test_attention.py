"""Attention of linear layers' outputs, against torch's own in FP64."""

from __future__ import annotations

import math
from pathlib import Path

import onnxruntime
import pytest
import torch
from torch import nn

import aot
from aot.declaration import Dim, Input, ModelSpec
from aot.errors import PluginError
from aot.frontend.export import write_module


def truth(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, heads: int, causal: bool, scale: float
) -> torch.Tensor:
    """FP64. Where causal, the last query sees the last key."""
    head = q.shape[-1] // heads
    split = [x.double().unflatten(-1, (-1, head)).transpose(1, 2) for x in (q, k, v)]
    added = mask.double()[:, None, None, :].expand(-1, 1, q.shape[1], -1)
    if causal:
        hidden = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).triu(1 + k.shape[1] - q.shape[1])
        added = added.masked_fill(hidden, -math.inf)
    y = nn.functional.scaled_dot_product_attention(*split, added, scale=scale or None, enable_gqa=True)
    return y.transpose(1, 2).flatten(2)


def given(batch: int, queries: int, keys: int, width: int, kv_width: int) -> list[torch.Tensor]:
    """q, k, v and a mask whose last key is padding."""
    generator = torch.Generator().manual_seed(queries)
    shapes = ((batch, queries, width), (batch, keys, kv_width), (batch, keys, kv_width), (batch, keys))
    made = [torch.randn(shape, generator=generator) for shape in shapes]
    made[3][:, -1] = -10000.0
    return made


@pytest.mark.parametrize(
    ("sizes", "heads", "causal", "scale"),
    [
        ((2, 5, 7, 32, 32), 4, False, 0.0),
        ((2, 7, 7, 32, 8), 4, True, 0.0),  # one head of keys for four of queries
        ((1, 3, 9, 24, 12), 6, True, 0.5),  # keys of a cache come first
        ((3, 1, 9, 40, 40), 1, True, 0.0),
    ],
)
def test_it_is_the_attention_of_torch(
    sizes: tuple[int, int, int, int, int], heads: int, causal: bool, scale: float
) -> None:
    inputs = given(*sizes)
    got = aot.ops.attention(*inputs, heads, causal, scale)
    torch.testing.assert_close(got.double(), truth(*inputs, heads, causal, scale), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("left_out", [-10000.0, torch.finfo(torch.float32).min, -math.inf])
def test_a_key_that_the_mask_leaves_out_is_as_if_it_were_not_there(left_out: float) -> None:
    q, k, v, mask = given(2, 4, 6, 16, 16)
    mask[:, 4:] = left_out
    alone = truth(q, k[:, :4], v[:, :4], mask[:, :4], 2, False, 0.0)
    torch.testing.assert_close(aot.ops.attention(q, k, v, mask, 2).double(), alone, rtol=1e-5, atol=1e-6)


def test_a_query_that_sees_no_key_gives_0() -> None:
    q, k, v, mask = given(2, 4, 2, 16, 16)
    mask[:] = torch.tensor([[0.0, 0.0], [-math.inf, -math.inf]])
    y = aot.ops.attention(q, k, v, mask, 2, True)
    assert [int(x) for x in y.abs().sum(-1).gt(0).sum(-1)] == [2, 0]  # of 4 queries the first 2 come before all keys
    assert not aot.ops.attention(q, k[:, :0], v[:, :0], mask[:, :0], 2).any()


@pytest.mark.parametrize(("width", "kv_width", "heads"), [(32, 32, 5), (32, 12, 4), (32, 24, 4), (32, 32, 0)])
def test_widths_that_are_no_whole_heads_are_refused(width: int, kv_width: int, heads: int) -> None:
    with pytest.raises(PluginError, match=f"q is {width} wide, k and v are {kv_width}: that is not {heads} heads"):
        aot.ops.attention(*given(1, 2, 3, width, kv_width), heads)


class Crossed(nn.Module):
    """Attention to another sequence, and causal attention with fewer heads of keys."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        narrow = k[..., :8]
        return aot.ops.attention(q, k, k * 0.5, mask, 4), aot.ops.attention(q, narrow, narrow, mask, 4, True, 0.25)


def test_as_a_function_in_onnx_it_gives_the_same_at_any_size(tmp_path: Path) -> None:
    batch, queries, keys = Dim("batch", min=1, opt=2, max=8), Dim("q", min=1, opt=5, max=9), Dim("k", min=1, max=16)
    spec = ModelSpec(
        "crossed",
        {"q": Input([batch, queries, 16]), "k": Input([batch, keys, 16]), "mask": Input([batch, keys])},
    )
    write_module(Crossed(), spec, tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for sizes in ((1, 1, 2, 16, 16), (3, 7, 12, 16, 16)):
        q, k, _, mask = given(*sizes)
        got = session.run(None, {"q": q.numpy(), "k": k.numpy(), "mask": mask.numpy()})
        right = (truth(q, k, k * 0.5, mask, 4, False, 0), truth(q, k[..., :8], k[..., :8], mask, 4, True, 0.25))
        for one, other in zip(got, right, strict=True):
            torch.testing.assert_close(torch.from_numpy(one).double(), other, rtol=1e-5, atol=1e-6)
