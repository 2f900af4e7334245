"""Residual add and RMSNorm in one pass over memory, y in INT8.

total = x + residual; y = total / sqrt(mean(total²) + eps) · weight, over the last axis (Zhang and Sennrich 2019,
arXiv:1910.07467). Computed in FP32 and rounded once at the end; `total` is the residual of the next layer.

y is what QuantizeLinear gives, y / scale rounded half to even within -128 to 127: a DequantizeLinear of that scale, in
torch y.float() * scale, follows it in the model.

A program takes one row, or `rows` of them where rows are short. With `programs`, so many run, a multiple of the 132
multiprocessors of an H200, each over every so many rows, and the next rows are read into shared memory while these are
computed, `ahead` at a time; more in aot/plugins/norms.py. A row must fit into a block, so `width` is fixed.
"""

import torch
import triton
import triton.language as tl

from aot.plugins import norms, rounding

NAME = "aot::add_rms_norm_int8"
SCHEMA = "(T x, T residual, T weight, float scale, float eps=1e-6) -> (int8 y, T total)"
TYPES = {"T": "float32 float16 bfloat16"}
SHAPES = {"x": "... width", "residual": "... width", "weight": "width"}
SIZES = {"width": (1, 32768)}
ATTRIBUTES = {"scale": [0.02, 0.005]}
CONFIGS = norms.CONFIGS


def reference(x, residual, weight, scale, eps):
    total = x.float() + residual.float()
    y = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + eps) * weight.float()
    y = torch.round(y / scale).clamp(-128, 127).to(torch.int8)
    return y, total.to(x.dtype)


def outputs(shapes, attributes):
    return shapes.x, shapes.x


def launch(shapes, attributes, config):
    return norms.launch(shapes, attributes, config, SCALE=attributes.scale)


@triton.jit
def kernel(
    x,
    residual,
    weight,
    rows,
    y,
    total,
    WIDTH: tl.constexpr,
    EPS: tl.constexpr,
    SCALE: tl.constexpr,
    ROWS: tl.constexpr,
    AGAIN: tl.constexpr,
    AHEAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    gain = norms.column(weight, WIDTH, BLOCK)
    gain *= 1.0 / SCALE
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    for _ in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=AHEAD):
        value, at, inside = norms.added(x, residual, total, row, rows, WIDTH, BLOCK, AGAIN)
        normed = norms.over_rms(value, x, residual, at, inside, WIDTH, EPS, AGAIN) * gain[None, :]
        tl.store(y + at, rounding.to_int8(normed), mask=inside)
        row += tl.num_programs(0) * ROWS
