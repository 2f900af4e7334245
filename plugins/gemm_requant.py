"""A linear layer of FP8 or INT8 whose output is quantized again: y = q(activation(x weightᵀ · scale + bias)).

x and weight are FP8 (E4M3) or INT8; `scale` is what one step of x times one step of a channel of weight is worth: the
product of the scales of the two DequantizeLinear that it stands for. q(a) is what QuantizeLinear gives: a / y_scale
within -448 to 448 in FP8, rounded half to even within -128 to 127 in INT8.

activation is none, relu, silu, gelu (with erf) or gelu_tanh, as in gemm_epilogue. INT8 is summed in INT32, FP8 as the
hardware does it (on Hopper with fewer bits than FP32 has); what follows is computed in FP32. Without a bias it is
zeros.

A program computes a block of rows and columns of y. Blocks are taken in bands of GROUP rows of blocks, so that programs
that run at the same time read the same parts of x and weight from the L2 cache. Rows beyond the last are read as the
last: no mask is needed, and what they give is not stored. `depth` is in bytes, so that a block takes as much shared
memory in every dtype.
"""

import math

import torch
import triton
import triton.language as tl

from aot.errors import PluginError
from aot.plugin import Launch, ceil_div, fixed

NAME = "aot::gemm_requant"
SCHEMA = '(Q x, Q weight, float32 scale, T bias, float y_scale, str activation="gelu") -> (Q y)'
TYPES = {"Q": "int8 float8_e4m3fn", "T": "float16 bfloat16 float32"}
SHAPES = {"x": "... depth", "weight": "width depth", "scale": "width", "bias": "width"}
SIZES = {"depth": (1, None), "width": (1, None)}
ATTRIBUTES = {"y_scale": [2.0], "activation": ["none", "relu", "silu", "gelu_tanh"]}
CONFIGS = [
    {"rows": 128, "columns": 128, "depth": 128, "group": 8, "num_warps": 8, "num_stages": 3},
    {"rows": 128, "columns": 128, "depth": 128, "group": 8, "num_warps": 4, "num_stages": 3},
    {"rows": 128, "columns": 256, "depth": 128, "group": 8, "num_warps": 8, "num_stages": 3},
    {"rows": 256, "columns": 128, "depth": 128, "group": 8, "num_warps": 8, "num_stages": 3},
    {"rows": 128, "columns": 128, "depth": 64, "group": 8, "num_warps": 4, "num_stages": 4},
    {"rows": 64, "columns": 128, "depth": 128, "group": 8, "num_warps": 4, "num_stages": 3},
    {"rows": 64, "columns": 64, "depth": 128, "group": 8, "num_warps": 4, "num_stages": 4},
    {"rows": 16, "columns": 64, "depth": 256, "group": 1, "num_warps": 4, "num_stages": 3},
]
SPACE = {
    "rows": [16, 32, 64, 128, 256],
    "columns": [32, 64, 128, 256],
    "depth": [64, 128, 256],
    "group": [1, 4, 8, 16],
    "num_warps": [4, 8],
    "num_stages": [2, 3, 4, 5],
}
ACTIVATIONS = {
    "none": lambda x: x,
    "relu": torch.relu,
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}


def reference(x, weight, scale, bias, y_scale, activation):
    y = torch.nn.functional.linear(x.float(), weight.float()) * scale + bias.float()
    y = ACTIVATIONS[activation](y) / y_scale
    # A function in ONNX is exported with FP32 in the place of FP8, and rounds at its end.
    return (y.round().clamp(-128, 127) if x.dtype == torch.int8 else y.clamp(-448, 448)).to(x.dtype)


def outputs(shapes, attributes):
    if attributes.activation not in ACTIVATIONS:
        raise PluginError(f"unknown activation '{attributes.activation}'", fix=f"one of {', '.join(ACTIVATIONS)}")
    return ((*shapes.x[:-1], shapes.weight[0]),)


def launch(shapes, attributes, config):
    rows = math.prod(shapes.x[:-1])
    width, depth = fixed(shapes.weight[0], "the width of the layer"), fixed(shapes.x[-1], "the depth of the layer")
    return Launch(
        grid=(ceil_div(rows, config["rows"]) * ceil_div(width, config["columns"]),),
        scalars={"rows": rows},
        constants={
            "WIDTH": width,
            "DEPTH": depth,
            "SCALE": attributes.y_scale,
            "ACTIVATION": attributes.activation,
            "ROWS": config["rows"],
            "COLUMNS": config["columns"],
            "STEP": config["depth"],
            "GROUP": config["group"],
        },
    )


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
    DEEP: tl.constexpr = STEP * 8 // x.dtype.element_ty.primitive_bitwidth
    across = (WIDTH + COLUMNS - 1) // COLUMNS
    band = tl.program_id(0) // (GROUP * across)
    high = tl.minimum(tl.cdiv(rows, ROWS) - band * GROUP, GROUP)
    within = tl.program_id(0) % (GROUP * across)
    top = (band * GROUP + within % high) * ROWS
    left = within // high * COLUMNS
    row, column, step = tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, DEEP)
    a = x + top.to(tl.int64) * DEPTH + tl.minimum(row, rows - 1 - top)[:, None] * DEPTH + step[None, :]
    b = weight + left.to(tl.int64) * DEPTH + tl.minimum(column, WIDTH - 1 - left)[None, :] * DEPTH + step[:, None]
    if x.dtype.element_ty == tl.int8:
        total = tl.zeros((ROWS, COLUMNS), tl.int32)
    else:
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, DEPTH, DEEP):
        if DEPTH % DEEP == 0:
            one, other = tl.load(a), tl.load(b)
        else:
            # Triton 3.6 makes no FP8 of the number 0.
            one = tl.load(a, mask=step[None, :] < DEPTH - start, other=tl.zeros((ROWS, DEEP), x.dtype.element_ty))
            other = tl.load(b, mask=step[:, None] < DEPTH - start, other=tl.zeros((DEEP, COLUMNS), x.dtype.element_ty))
        total = tl.dot(one, other, total, out_dtype=total.dtype)
        a += DEEP
        b += DEEP
    inside = (row[:, None] < rows - top) & (column[None, :] < WIDTH - left)
    worth = tl.load(scale + left + column, mask=column < WIDTH - left, other=0.0)
    total = total.to(tl.float32) * worth[None, :]
    total += tl.load(bias + left + column, mask=column < WIDTH - left, other=0.0).to(tl.float32)[None, :]
    if ACTIVATION == "relu":
        total = tl.maximum(total, 0.0)
    elif ACTIVATION == "silu":
        total *= tl.sigmoid(total)
    elif ACTIVATION == "gelu":
        total *= 0.5 + 0.5 * tl.erf(total * 0.7071067811865476)
    elif ACTIVATION == "gelu_tanh":
        total *= tl.sigmoid(1.5957691216057308 * (total + 0.044715 * total * total * total))
    at = top.to(tl.int64) * WIDTH + left + row[:, None] * WIDTH + column[None, :]
    total *= 1.0 / SCALE
    if x.dtype.element_ty == tl.int8:
        # FP32 holds no fractions from 2^23 on: there and back rounds half to even.
        total = tl.minimum(tl.maximum(total, -128.0), 127.0) + 12582912.0 - 12582912.0
    else:
        total = tl.minimum(tl.maximum(total, -448.0), 448.0)
    tl.store(y + at, total.to(y.dtype.element_ty), mask=inside)
