"""A linear layer with what follows it in one kernel: y = activation(x weightᵀ + bias).

activation: none, relu, silu (x σ(x)), gelu (x Φ(x), with erf), or gelu_tanh (Hendrycks and Gimpel 2016,
arXiv:1606.08415), which is computed as x σ(2u), u = √(2/π) (x + 0.044715 x³), since tanh(u) = 2σ(2u) - 1. Summed and
activated in FP32 and rounded once; products of FP32 are not rounded to TF32. Without a bias it is zeros.

Blocks, and `depth` in CONFIGS, are those of every product (aot/plugins/gemm.py).
"""

import torch
import triton
import triton.language as tl

from aot.plugins import gemm

NAME = "aot::gemm_epilogue"
SCHEMA = '(T x, T weight, T bias, str activation="gelu") -> (T y)'
TYPES = {"T": "float32 float16 bfloat16"}
SHAPES = {"x": "... depth", "weight": "width depth", "bias": "width"}
SIZES = {"depth": (1, None), "width": (1, None)}
ATTRIBUTES = {"activation": ["none", "relu", "silu", "gelu_tanh"]}
CONFIGS = gemm.CONFIGS
SPACE = gemm.SPACE


def reference(x, weight, bias, activation):
    return gemm.activate(torch.nn.functional.linear(x.float(), weight.float(), bias.float()), activation).to(x.dtype)


def outputs(shapes, attributes):
    return gemm.outputs(shapes, attributes)


def launch(shapes, attributes, config):
    return gemm.launch(shapes, config, ACTIVATION=attributes.activation)


@triton.jit
def kernel(
    x,
    weight,
    bias,
    rows,
    y,
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    GROUP: tl.constexpr,
):
    top, left = gemm.block(rows, WIDTH, ROWS, COLUMNS, GROUP)
    total = gemm.product(x, weight, rows, top, left, WIDTH, DEPTH, ROWS, COLUMNS, STEP)
    total = gemm.activated(total + gemm.by_column(bias, left, WIDTH, COLUMNS), ACTIVATION)
    at, inside = gemm.within(rows, top, left, WIDTH, ROWS, COLUMNS)
    tl.store(y + at, total.to(y.dtype.element_ty), mask=inside)
