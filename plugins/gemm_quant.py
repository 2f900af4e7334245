"""A linear layer of FP8 or INT8 with what follows it in one kernel: y = activation(x weightᵀ · scale + bias).

x and weight are FP8 (E4M3) or INT8; `scale` is what one step of x times one step of a channel of weight is worth: the
product of the scales of the two DequantizeLinear that it stands for.

activation is none, relu, silu, gelu (with erf) or gelu_tanh, as in gemm_epilogue. INT8 is summed in INT32, FP8 as the
hardware does it (on Hopper with fewer bits than FP32 has); what follows is computed in FP32. Without a bias it is
zeros.

Blocks, and `depth` in CONFIGS, are those of every product (aot/plugins/gemm.py).
"""

import torch
import triton
import triton.language as tl

from aot.plugins import gemm

NAME = "aot::gemm_quant"
SCHEMA = '(Q x, Q weight, float32 scale, T bias, str activation="gelu") -> (T y)'
TYPES = {"Q": "int8 float8_e4m3fn", "T": "float16 bfloat16 float32"}
SHAPES = {"x": "... depth", "weight": "width depth", "scale": "width", "bias": "width"}
SIZES = {"depth": (1, None), "width": (1, None)}
ATTRIBUTES = {"activation": ["none", "relu", "silu", "gelu_tanh"]}
CONFIGS = gemm.QUANTIZED
SPACE = gemm.SPACE


def reference(x, weight, scale, bias, activation):
    y = torch.nn.functional.linear(x.float(), weight.float()) * scale + bias.float()
    return gemm.activate(y, activation).to(bias.dtype)


def outputs(shapes, attributes):
    return gemm.outputs(shapes, attributes)


def launch(shapes, attributes, config):
    return gemm.launch(shapes, config, ACTIVATION=attributes.activation)


@triton.jit
def kernel(
    x,
    weight,
    scale,
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
    total = total * gemm.by_column(scale, left, WIDTH, COLUMNS) + gemm.by_column(bias, left, WIDTH, COLUMNS)
    total = gemm.activated(total, ACTIVATION)
    at, inside = gemm.within(rows, top, left, WIDTH, ROWS, COLUMNS)
    tl.store(y + at, total.to(y.dtype.element_ty), mask=inside)
