"""SwiGLU (Shazeer 2020, arXiv:2002.05202) of one product, rounded to INT8: y = q(gate σ(gate) up).

gate_up holds both halves of a row side by side, gate first, as one linear layer of both weights gives them. Computed in
FP32 and rounded once.

q is what QuantizeLinear does, a / scale rounded half to even within -128 to 127: a DequantizeLinear of that scale, in
torch y.float() * scale, follows it in the model.

A program takes a piece of one or several rows. Nothing is read twice, so memory alone counts.
"""

import math

import torch
import triton
import triton.language as tl

from aot.plugin import Launch, ceil_div, fixed
from aot.plugins import rounding

NAME = "aot::swiglu_int8"
SCHEMA = "(T gate_up, float scale) -> (int8 y)"
TYPES = {"T": "float32 float16 bfloat16"}
SHAPES = {"gate_up": "... doubled"}
SIZES = {"doubled": (2, None, 2)}
ATTRIBUTES = {"scale": [0.02, 0.005]}
CONFIGS = [
    {"rows": 1, "columns": 1024, "num_warps": 4},
    {"rows": 1, "columns": 2048, "num_warps": 4},
    {"rows": 1, "columns": 4096, "num_warps": 8},
    {"rows": 2, "columns": 1024, "num_warps": 4},
    {"rows": 4, "columns": 256, "num_warps": 4},
    {"rows": 8, "columns": 128, "num_warps": 4},
]


def reference(gate_up, scale):
    gate, up = gate_up.float().chunk(2, -1)
    y = torch.nn.functional.silu(gate) * up
    return torch.round(y / scale).clamp(-128, 127).to(torch.int8)


def outputs(shapes, attributes):
    return ((*shapes.gate_up[:-1], shapes.gate_up[-1] // 2),)


def launch(shapes, attributes, config):
    rows = math.prod(shapes.gate_up[:-1])
    width = fixed(shapes.gate_up[-1], "the width of gate and up") // 2
    return Launch(
        grid=(ceil_div(rows, config["rows"]) * ceil_div(width, config["columns"]),),
        scalars={"rows": rows},
        constants={"WIDTH": width, "SCALE": attributes.scale, "ROWS": config["rows"], "COLUMNS": config["columns"]},
    )


@triton.jit
def kernel(gate_up, rows, y, WIDTH: tl.constexpr, SCALE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    across = (WIDTH + COLUMNS - 1) // COLUMNS
    row = (tl.program_id(0) // across).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = (row < rows) & (column < WIDTH)
    at = row * (2 * WIDTH) + column
    gate = tl.load(gate_up + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + at + WIDTH, mask=inside, other=0.0).to(tl.float32)
    made = rounding.to_int8(gate * tl.sigmoid(gate) * up * (1.0 / SCALE))
    tl.store(y + row * WIDTH + column, made, mask=inside)
