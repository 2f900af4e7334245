# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, no-any-return"
"""What the plugins of linear layers share: their activations, their launch, and the parts of their kernels.

A program computes a block of rows and columns of y. Blocks are taken in bands of GROUP rows of blocks, so that programs
that run at the same time read the same parts of x and weight from the L2 cache. Rows beyond the last are read as the
last: no mask is needed, and what they give is not stored. `depth` of a config is in bytes, so that a block takes as
much shared memory in every dtype.

Imports triton; only files of plugins import it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

from aot.errors import PluginError
from aot.plugin import Launch, ceil_div, fixed

if TYPE_CHECKING:
    import torch

CONFIGS = [
    {"rows": 128, "columns": 128, "depth": 128, "group": 8, "num_warps": 8, "num_stages": 3},
    {"rows": 128, "columns": 128, "depth": 128, "group": 8, "num_warps": 4, "num_stages": 3},
    {"rows": 128, "columns": 256, "depth": 128, "group": 8, "num_warps": 8, "num_stages": 3},
    {"rows": 256, "columns": 128, "depth": 128, "group": 8, "num_warps": 8, "num_stages": 3},
    {"rows": 128, "columns": 128, "depth": 128, "group": 8, "num_warps": 8, "num_stages": 4},
    {"rows": 128, "columns": 128, "depth": 64, "group": 8, "num_warps": 4, "num_stages": 4},
    {"rows": 64, "columns": 128, "depth": 128, "group": 8, "num_warps": 4, "num_stages": 4},
    {"rows": 64, "columns": 64, "depth": 128, "group": 8, "num_warps": 4, "num_stages": 4},
    {"rows": 32, "columns": 64, "depth": 128, "group": 8, "num_warps": 4, "num_stages": 4},
    {"rows": 16, "columns": 64, "depth": 256, "group": 1, "num_warps": 4, "num_stages": 4},
]
QUANTIZED = [
    {"rows": 128, "columns": 128, "depth": 128, "group": 8, "num_warps": 8, "num_stages": 3},
    {"rows": 128, "columns": 128, "depth": 128, "group": 8, "num_warps": 4, "num_stages": 3},
    {"rows": 128, "columns": 256, "depth": 128, "group": 8, "num_warps": 8, "num_stages": 3},
    {"rows": 256, "columns": 128, "depth": 128, "group": 8, "num_warps": 8, "num_stages": 3},
    {"rows": 128, "columns": 128, "depth": 64, "group": 8, "num_warps": 4, "num_stages": 4},
    {"rows": 64, "columns": 128, "depth": 128, "group": 8, "num_warps": 4, "num_stages": 3},
    {"rows": 64, "columns": 64, "depth": 128, "group": 8, "num_warps": 4, "num_stages": 4},
    {"rows": 16, "columns": 64, "depth": 256, "group": 1, "num_warps": 4, "num_stages": 3},
]
"""CONFIGS of INT8 and FP8."""
SPACE = {
    "rows": [16, 32, 64, 128, 256],
    "columns": [32, 64, 128, 256],
    "depth": [64, 128, 256],
    "group": [1, 4, 8, 16],
    "num_warps": [4, 8],
    "num_stages": [2, 3, 4, 5],
}
ACTIVATIONS = ("none", "relu", "silu", "gelu", "gelu_tanh")


def activate(x: torch.Tensor, activation: str) -> torch.Tensor:
    """One of ACTIVATIONS in torch; `activated` is the same in a kernel."""
    from torch.nn import functional as F

    if activation == "gelu_tanh":
        return F.gelu(x, approximate="tanh")
    return x if activation == "none" else getattr(F, activation)(x)


def outputs(shapes: Any, attributes: Any) -> tuple[tuple[Any, ...]]:
    """The shape of y for x [..., depth] and weight [width, depth]. Raises PluginError for an unknown activation."""
    if attributes.activation not in ACTIVATIONS:
        raise PluginError(f"unknown activation '{attributes.activation}'", fix=f"one of {', '.join(ACTIVATIONS)}")
    return ((*shapes.x[:-1], shapes.weight[0]),)


def launch(shapes: Any, config: Any, **constants: Any) -> Launch:
    """A program for each block. constants: of the kernel, beside those of every product. Raises PluginError where
    width or depth varies."""
    rows = math.prod(shapes.x[:-1])
    width, depth = fixed(shapes.weight[0], "the width of the layer"), fixed(shapes.x[-1], "the depth of the layer")
    return Launch(
        grid=(ceil_div(rows, config["rows"]) * ceil_div(width, config["columns"]),),
        scalars={"rows": rows},
        constants={
            "WIDTH": width,
            "DEPTH": depth,
            "ROWS": config["rows"],
            "COLUMNS": config["columns"],
            "STEP": config["depth"],
            "GROUP": config["group"],
            **constants,
        },
    )


@triton.jit
def block(rows, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr):
    """The first row and column of the block that this program computes."""
    across = (WIDTH + COLUMNS - 1) // COLUMNS
    band = tl.program_id(0) // (GROUP * across)
    high = tl.minimum(tl.cdiv(rows, ROWS) - band * GROUP, GROUP)
    within = tl.program_id(0) % (GROUP * across)
    return (band * GROUP + within % high) * ROWS, within // high * COLUMNS


@triton.jit
def product(
    x, weight, rows, top, left,
    WIDTH: tl.constexpr, DEPTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """The block of x weightᵀ at (top, left): FP32 [ROWS, COLUMNS]. INT8 is summed in INT32; products of FP32 are not
    rounded to TF32."""
    DEEP: tl.constexpr = STEP * 8 // x.dtype.element_ty.primitive_bitwidth
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
        total = tl.dot(one, other, total, input_precision="ieee", out_dtype=total.dtype)
        a += DEEP
        b += DEEP
    return total.to(tl.float32)


@triton.jit
def by_column(values, left, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """What is given for each column of y, for those of the block: FP32 [1, COLUMNS]."""
    column = tl.arange(0, COLUMNS)
    return tl.load(values + left + column, mask=column < WIDTH - left, other=0.0).to(tl.float32)[None, :]


@triton.jit
def activated(total, ACTIVATION: tl.constexpr):
    """ACTIVATIONS, of FP32. gelu_tanh is x σ(2u), u = √(2/π) (x + 0.044715 x³), since tanh(u) = 2σ(2u) - 1."""
    if ACTIVATION == "relu":
        total = tl.maximum(total, 0.0)
    elif ACTIVATION == "silu":
        total *= tl.sigmoid(total)
    elif ACTIVATION == "gelu":
        total *= 0.5 + 0.5 * tl.erf(total * 0.7071067811865476)
    elif ACTIVATION == "gelu_tanh":
        total *= tl.sigmoid(1.5957691216057308 * (total + 0.044715 * total * total * total))
    return total


@triton.jit
def within(rows, top, left, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Where the block lies in y, and which of it does: [ROWS, COLUMNS]."""
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    at = top.to(tl.int64) * WIDTH + left + row[:, None] * WIDTH + column[None, :]
    return at, (row[:, None] < rows - top) & (column[None, :] < WIDTH - left)
