"""Residual add and LayerNorm in one pass over memory, y in FP8 (E4M3).

total = x + residual; y = (total - mean) / sqrt(variance + eps) · weight + bias, over the last axis, with the variance
of the whole population (Ba, Kiros and Hinton 2016, arXiv:1607.06450). Computed in FP32, the variance from the
differences to the mean, and rounded once at the end; `total` is the residual of the next layer.

y is what QuantizeLinear gives, y / scale within -448 to 448: a DequantizeLinear of that scale, in torch
y.float() * scale, follows it in the model.

A program takes one row, or `rows` of them where rows are short. With `programs`, so many run, a multiple of the 132
multiprocessors of an H200, each over every so many rows, and the next rows are read into shared memory while these are
computed, `ahead` at a time; more in aot/plugins/norms.py. A row must fit into a block, so `width` is fixed.
"""

import torch
import triton
import triton.language as tl

from aot.plugins import norms, rounding

NAME = "aot::add_layer_norm_fp8"
SCHEMA = "(T x, T residual, T weight, T bias, float scale, float eps=1e-5) -> (float8_e4m3fn y, T total)"
TYPES = {"T": "float32 float16 bfloat16"}
SHAPES = {"x": "... width", "residual": "... width", "weight": "width", "bias": "width"}
SIZES = {"width": (1, 32768)}
ATTRIBUTES = {"scale": [0.02, 0.005], "eps": [1e-12]}
CONFIGS = norms.CONFIGS


def reference(x, residual, weight, bias, scale, eps):
    total = x.float() + residual.float()
    y = torch.nn.functional.layer_norm(total, total.shape[-1:], weight.float(), bias.float(), eps)
    y = (y / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
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
    bias,
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
    shift = norms.column(bias, WIDTH, BLOCK)
    gain *= 1.0 / SCALE
    shift *= 1.0 / SCALE
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    for _ in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=AHEAD):
        value, at, inside = norms.added(x, residual, total, row, rows, WIDTH, BLOCK, AGAIN)
        normed = norms.standardized(value, x, residual, at, inside, WIDTH, EPS, AGAIN) * gain[None, :] + shift[None, :]
        tl.store(y + at, rounding.to_fp8(normed), mask=inside)
        row += tl.num_programs(0) * ROWS
