"""A linear layer of FP8 or INT8 whose output is quantized again: y = q(activation(x weightᵀ · scale + bias)).

x and weight are FP8 (E4M3) or INT8; `scale` is what one step of x times one step of a channel of weight is worth: the
product of the scales of the two DequantizeLinear that it stands for. q(a) is what QuantizeLinear gives: a / y_scale
within -448 to 448 in FP8, rounded half to even within -128 to 127 in INT8.

activation is none, relu, silu, gelu (with erf) or gelu_tanh, as in gemm_epilogue. INT8 is summed in INT32, FP8 as the
hardware does it (on Hopper with fewer bits than FP32 has); what follows is computed in FP32. Without a bias it is
zeros.

Blocks, and `depth` in CONFIGS, are those of every product (aot/plugins/gemm.py).
"""

import torch
import triton
import triton.language as tl

from aot.plugins import gemm, rounding

NAME = "aot::gemm_requant"
SCHEMA = '(Q x, Q weight, float32 scale, T bias, float y_scale, str activation="gelu") -> (Q y)'
TYPES = {"Q": "int8 float8_e4m3fn", "T": "float16 bfloat16 float32"}
SHAPES = {"x": "... depth", "weight": "width depth", "scale": "width", "bias": "width"}
SIZES = {"depth": (1, None), "width": (1, None)}
ATTRIBUTES = {"y_scale": [2.0], "activation": ["none", "relu", "silu", "gelu_tanh"]}
CONFIGS = gemm.QUANTIZED
SPACE = gemm.SPACE


def reference(x, weight, scale, bias, y_scale, activation):
    y = torch.nn.functional.linear(x.float(), weight.float()) * scale + bias.float()
    y = gemm.activate(y, activation) / y_scale
    # A function in ONNX is exported with FP32 in the place of FP8, and rounds at its end.
    return (y.round().clamp(-128, 127) if x.dtype == torch.int8 else y.clamp(-448, 448)).to(x.dtype)


def outputs(shapes, attributes):
    return gemm.outputs(shapes, attributes)


def launch(shapes, attributes, config):
    return gemm.launch(shapes, config, ACTIVATION=attributes.activation, SCALE=attributes.y_scale)


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
    SCALE: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    GROUP: tl.constexpr,
):
    top, left = gemm.block(rows, WIDTH, ROWS, COLUMNS, GROUP)
    total = gemm.product(x, weight, rows, top, left, WIDTH, DEPTH, ROWS, COLUMNS, STEP)
    total = total * gemm.by_column(scale, left, WIDTH, COLUMNS) + gemm.by_column(bias, left, WIDTH, COLUMNS)
    total = gemm.activated(total, ACTIVATION) * (1.0 / SCALE)
    total = rounding.to_int8(total) if x.dtype.element_ty == tl.int8 else rounding.to_fp8(total)
    at, inside = gemm.within(rows, top, left, WIDTH, ROWS, COLUMNS)
    tl.store(y + at, total, mask=inside)
