"""A linear layer and the residual behind it in one kernel: y = x weightᵀ + bias + residual.

Summed in FP32 and rounded once; products of FP32 are not rounded to TF32. Without a bias it is zeros.

Blocks, and `depth` in CONFIGS, are those of every product (aot/plugins/gemm.py).
"""

import torch
import triton
import triton.language as tl

from aot.plugins import gemm

NAME = "aot::gemm_residual"
SCHEMA = "(T x, T weight, T bias, T residual) -> (T y)"
TYPES = {"T": "float32 float16 bfloat16"}
SHAPES = {"x": "... depth", "weight": "width depth", "bias": "width", "residual": "... width"}
SIZES = {"depth": (1, None), "width": (1, None)}
CONFIGS = gemm.CONFIGS
SPACE = gemm.SPACE


def reference(x, weight, bias, residual):
    y = torch.nn.functional.linear(x.float(), weight.float(), bias.float()) + residual.float()
    return y.to(x.dtype)


def outputs(shapes, attributes):
    return (shapes.residual,)


def launch(shapes, attributes, config):
    return gemm.launch(shapes, config)


@triton.jit
def kernel(
    x,
    weight,
    bias,
    residual,
    rows,
    y,
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    GROUP: tl.constexpr,
):
    top, left = gemm.block(rows, WIDTH, ROWS, COLUMNS, GROUP)
    total = gemm.product(x, weight, rows, top, left, WIDTH, DEPTH, ROWS, COLUMNS, STEP)
    total += gemm.by_column(bias, left, WIDTH, COLUMNS)
    at, inside = gemm.within(rows, top, left, WIDTH, ROWS, COLUMNS)
    total += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + at, total.to(y.dtype.element_ty), mask=inside)
