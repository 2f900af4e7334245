"""What plugins are measured against: the same written with torch or torchvision, and usual inputs.

Every function takes a plugin's inputs and attributes in the order of its SCHEMA.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch.nn import functional as F

T = torch.Tensor
LEVELS = ((100, 134), (50, 67), (25, 34), (13, 17))
"""Rows and columns of the feature maps of a picture of 800 x 1066, at strides of 8 to 64."""


def add_rms_norm(x: T, residual: T, weight: T, eps: float) -> tuple[T, T]:
    """F.rms_norm of a sum."""
    total = x + residual
    return F.rms_norm(total, total.shape[-1:], weight, eps), total


def add_layer_norm(x: T, residual: T, weight: T, bias: T, eps: float) -> tuple[T, T]:
    """F.layer_norm of a sum."""
    total = x + residual
    return F.layer_norm(total, total.shape[-1:], weight, bias, eps), total


def rotary(x: T, cos: T, sin: T, interleaved: bool) -> T:
    """As transformers writes it, in the inputs' dtypes; heads side by side."""
    heads, cos, sin = x.unflatten(-1, (-1, cos.shape[-1])), cos[:, None], sin[:, None]
    if interleaved:
        turned = torch.stack((-heads[..., 1::2], heads[..., ::2]), -1).flatten(-2)
    else:
        one, two = heads.chunk(2, -1)
        turned = torch.cat((-two, one), -1)
    return (heads * cos + turned * sin).to(x.dtype).flatten(-2)


def _heads(x: T, head: int) -> T:
    return x.unflatten(-1, (-1, head)).transpose(1, 2)


def attention(q: T, k: T, v: T, mask: T, heads: int, causal: bool, scale: float) -> T:
    """F.scaled_dot_product_attention with an additive mask."""
    head = q.shape[-1] // heads
    added = mask[:, None, None, :].to(q.dtype)
    if causal:
        later = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device=q.device).triu(k.shape[1] - q.shape[1] + 1)
        added = added.masked_fill(later, float("-inf"))
    q, k, v = (_heads(x, head) for x in (q, k, v))
    y = F.scaled_dot_product_attention(q, k, v, added, scale=scale or None, enable_gqa=q.shape[1] != k.shape[1])
    return y.transpose(1, 2).flatten(2)


def attention_without_mask(q: T, k: T, v: T, mask: T, heads: int, causal: bool, scale: float) -> T:
    """The same where nothing is padding, which has quicker kernels."""
    head = q.shape[-1] // heads
    q, k, v = (_heads(x, head) for x in (q, k, v))
    y = F.scaled_dot_product_attention(
        q, k, v, is_causal=causal, scale=scale or None, enable_gqa=q.shape[1] != k.shape[1]
    )
    return y.transpose(1, 2).flatten(2)


def gemm_epilogue(x: T, weight: T, bias: T, activation: str) -> T:
    """A linear layer and its activation."""
    y = F.linear(x, weight, bias)
    if activation == "gelu_tanh":
        return F.gelu(y, approximate="tanh")
    return y if activation == "none" else getattr(F, activation)(y)


def gemm_residual(x: T, weight: T, bias: T, residual: T) -> T:
    """A linear layer and a sum."""
    return F.linear(x, weight, bias) + residual


def gemm_quant(x: T, weight: T, scale: T, bias: T, activation: str) -> T:
    """The library's product of quantized matrices, then the rest in FP32."""
    rows = x.flatten(0, -2)
    if x.dtype == torch.int8:
        product = torch._int_mm(rows, weight.t()).float() * scale
    else:
        one = torch.ones((), device=x.device)
        product = torch._scaled_mm(rows, weight.t(), one, one, out_dtype=torch.bfloat16).float() * scale
    y = product + bias.float()
    if activation != "none":
        y = F.gelu(y, approximate="tanh") if activation == "gelu_tanh" else getattr(F, activation)(y)
    return y.to(bias.dtype).unflatten(0, x.shape[:-1])


def gemm_requant(x: T, weight: T, scale: T, bias: T, y_scale: float, activation: str) -> T:
    """The same, quantized again."""
    y = gemm_quant(x, weight, scale, bias.float(), activation) / y_scale
    return (y.round().clamp(-128, 127) if x.dtype == torch.int8 else y.clamp(-448, 448)).to(x.dtype)


def small_scales(inputs: dict[str, Any]) -> dict[str, Any]:
    """Scales that bring products back to about 1."""
    return {**inputs, "scale": inputs["scale"].abs() / inputs["x"].shape[-1]}


def swiglu(gate_up: T) -> T:
    """Half of it gates the other."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


def deform_conv2d(x: T, offset: T, mask: T, weight: T, bias: T, *steps: int) -> T:
    """torchvision.ops.deform_conv2d, in the layout that it takes."""
    from torchvision.ops import deform_conv2d as convolve

    y = convolve(_first(x), offset, _first(weight), bias, steps[:2], steps[2:4], steps[4:6], mask)
    return y.permute(0, 2, 3, 1)


@lru_cache(maxsize=2)
def _first(x: T) -> T:
    """A copy with its channels first, made before anything is timed."""
    return x.movedim(-1, 1).contiguous()


def ms_deform_attn(value: T, shapes: T, starts: T, locations: T, weights: T) -> T:
    """As Deformable DETR does without its kernel: F.grid_sample a level."""
    batch, _, heads, width = value.shape
    queries, levels, points = locations.shape[1], locations.shape[3], locations.shape[4]
    grids = (2 * locations - 1).to(value.dtype)
    taken = []
    for level, part in enumerate(value.split([rows * columns for rows, columns in LEVELS], 1)):
        image = part.flatten(2).transpose(1, 2).reshape(batch * heads, width, *LEVELS[level])
        grid = grids[:, :, :, level].transpose(1, 2).flatten(0, 1)
        taken.append(F.grid_sample(image, grid, mode="bilinear", padding_mode="zeros", align_corners=False))
    share = weights.transpose(1, 2).reshape(batch * heads, 1, queries, levels * points)
    y = (torch.stack(taken, -2).flatten(-2) * share).sum(-1)
    return y.view(batch, heads * width, queries).transpose(1, 2).contiguous()


def pyramid(inputs: dict[str, Any]) -> dict[str, Any]:
    """Maps of LEVELS, and locations all over the picture."""
    shapes = torch.tensor(LEVELS)
    areas = shapes.prod(1)
    weights = inputs["weights"]
    return {
        **inputs,
        "shapes": shapes,
        "starts": areas.cumsum(0) - areas,
        "locations": torch.rand_like(inputs["locations"]),
        "weights": weights.flatten(-2).softmax(-1).view(weights.shape),
    }


def grid_sample_3d(x: T, grid: T, mode: str, padding_mode: str, align_corners: bool) -> T:
    """F.grid_sample in the input's dtype, in the layout that it takes."""
    y = F.grid_sample(_first(x), grid.to(x.dtype), mode=mode, padding_mode=padding_mode, align_corners=align_corners)
    return y.permute(0, 2, 3, 4, 1)


def bev_pool(depth: T, features: T, ranks_depth: T, ranks_features: T, starts: T) -> T:
    """What is sampled, weighted and added up by index_add."""
    points = torch.arange(len(ranks_depth), device=starts.device, dtype=starts.dtype)
    cell = torch.bucketize(points, starts, right=True) - 1
    inside = ((cell >= 0) & (cell < len(starts) - 1)).to(features.dtype)
    taken = depth[:, ranks_depth, None] * features[:, ranks_features] * inside[:, None]
    cells = cell.clamp(0, len(starts) - 2)
    return features.new_zeros(len(features), len(starts) - 1, features.shape[2]).index_add(1, cells, taken)


def flow(inputs: dict[str, Any]) -> dict[str, Any]:
    """Coordinates of the pixels themselves, moved by some pixels."""
    height, width = inputs["first"].shape[1:3]
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return {**inputs, "coordinates": torch.stack((columns, rows)) + 4 * inputs["coordinates"]}


def selective_scan(u: T, delta: T, a: T, b: T, c: T, d: T, z: T, delta_bias: T, softplus: bool, gate: bool) -> T:
    """Mamba's formula, a step at a time, in FP32."""
    dt = delta.float() + delta_bias
    dt = F.softplus(dt) if softplus else dt
    wide, b, c = u.float(), b.float(), c.float()
    state = u.new_zeros(u.shape[0], u.shape[2], a.shape[1], dtype=torch.float32)
    steps = []
    for t in range(u.shape[1]):
        state = torch.exp(dt[:, t, :, None] * a) * state + (dt[:, t] * wide[:, t])[..., None] * b[:, t, None]
        steps.append((state * c[:, t, None]).sum(-1))
    y = torch.stack(steps, 1) + d * wide
    return (y * F.silu(z.float()) if gate else y).to(u.dtype)


def segment_reduce(x: T, pointers: T, reduce: str) -> T:
    """torch.segment_reduce."""
    return torch.segment_reduce(x, reduce, offsets=pointers, initial=0)


def segments(inputs: dict[str, Any]) -> dict[str, Any]:
    """Segments of random lengths."""
    edges, bounds = len(inputs["x"]), len(inputs["pointers"])
    pointers = torch.randint(0, edges + 1, (bounds,)).sort().values
    pointers[0], pointers[-1] = 0, edges
    return {**inputs, "pointers": pointers}


def scatter_reduce(x: T, index: T, like: T, reduce: str) -> T:
    """index_add, whose additions are atomic."""
    return torch.zeros_like(like).index_add(0, index, x)


def nodes(inputs: dict[str, Any]) -> dict[str, Any]:
    """Every edge leads to a random node."""
    return {**inputs, "index": torch.randint(0, len(inputs["like"]), inputs["index"].shape)}


def nms(boxes: T, scores: T, iou_threshold: float, score_threshold: float, max_outputs: int) -> tuple[T, T]:
    """torchvision.ops.nms, an item at a time; of results of some other order or length only the time is of use."""
    from torchvision.ops import nms as suppress

    found = torch.full((*scores.shape[:-1], max_outputs), -1, device=boxes.device)
    count = torch.zeros(scores.shape[:-1], dtype=torch.int32, device=boxes.device)
    for item, (own, score) in enumerate(zip(boxes.flatten(0, -3), scores.flatten(0, -2), strict=True)):
        (above,) = torch.where(score > score_threshold)
        kept = above[suppress(own[above], score[above], iou_threshold)][:max_outputs]
        found.view(-1, max_outputs)[item, : len(kept)] = kept
        count.view(-1)[item] = len(kept)
    return found, count
