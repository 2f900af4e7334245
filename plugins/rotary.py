"""Rotary position embedding of queries or keys (Su et al. 2021, arXiv:2104.09864).

y = x · cos + turned(x) · sin, where pairs of elements (a, b) of a head are turned to (-b, a). The pair is i and
i + head / 2, as in GPT-NeoX and Llama, or 2i and 2i + 1, as in GPT-J, where `interleaved`. cos and sin hold, for each
position, the angle of every element. Computed in FP32 and rounded once at the end.

x is [..., positions, head], or has the heads of a position side by side, as linear layers leave them: its width is a
multiple of the head then. A program turns several heads at once, each element read twice, the second time from the
cache.
"""

import math

import torch
import triton
import triton.language as tl

from aot.errors import PluginError
from aot.plugin import Launch, ceil_div, fixed, power_of_two

NAME = "aot::rotary"
SCHEMA = "(T x, C cos, C sin, bool interleaved=False) -> (T y)"
TYPES = {"T": "float32 float16 bfloat16", "C": "float32 float16 bfloat16"}
SHAPES = {"x": "... positions width", "cos": "positions head", "sin": "positions head"}
SIZES = {"head": (2, 4096, 2)}
CASES = [
    {"...": (3,), "positions": 5, "width": 24, "head": 8},
    {"...": (), "positions": 3, "width": 6, "head": 2},
    {"...": (2, 3), "positions": 5, "width": 10, "head": 10},
    {"...": (0,), "positions": 5, "width": 8, "head": 8},
    {"...": (1,), "positions": 0, "width": 8, "head": 8},
    {"...": (2,), "positions": 1, "width": 132, "head": 132},
    {"...": (2,), "positions": 131, "width": 68, "head": 68},
    {"...": (67,), "positions": 3, "width": 204, "head": 68},
]
CONFIGS = [
    {"rows": 8, "num_warps": 4},
    {"rows": 4, "num_warps": 2},
    {"rows": 16, "num_warps": 4},
    {"rows": 32, "num_warps": 8},
]


def reference(x, cos, sin, interleaved):
    wide = x.float().unflatten(-1, (-1, cos.shape[-1]))
    if interleaved:
        turned = torch.stack((-wide[..., 1::2], wide[..., ::2]), -1).flatten(-2)
    else:
        half = wide.shape[-1] // 2
        turned = torch.cat((-wide[..., half:], wide[..., :half]), -1)
    return (wide * cos.float()[:, None] + turned * sin.float()[:, None]).flatten(-2).to(x.dtype)


def halves(x, cos, sin, interleaved=False):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def chunks(x, cos, sin, interleaved=False):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def neighbours(x, cos, sin, interleaved=True):
    return x * cos + torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) * sin


PATTERNS = [halves, chunks, neighbours]


def outputs(shapes, attributes):
    width, head = fixed(shapes.x[-1], "the width of x"), fixed(shapes.cos[-1], "the size of a head")
    if width % head:
        raise PluginError(f"x is {width} wide, which are no whole heads of {head}")
    return (shapes.x,)


def launch(shapes, attributes, config):
    head = fixed(shapes.cos[-1], "the size of a head")
    heads = fixed(shapes.x[-1], "the width of x") // head
    rows = math.prod(shapes.x[:-1]) * heads
    return Launch(
        grid=(ceil_div(rows, config["rows"]),),
        scalars={"rows": rows, "positions": shapes.x[-2]},
        constants={
            "HEAD": head,
            "HEADS": heads,
            "INTERLEAVED": attributes.interleaved,
            "ROWS": config["rows"],
            "BLOCK": power_of_two(head, "the size of a head"),
        },
    )


@triton.jit
def kernel(
    x,
    cos,
    sin,
    rows,
    positions,
    y,
    HEAD: tl.constexpr,
    HEADS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    if INTERLEAVED:
        partner = column ^ 1
        first = column % 2 == 0
    else:
        partner = (column + HEAD // 2) % HEAD
        first = column < HEAD // 2
    inside = (row[:, None] < rows) & (column[None, :] < HEAD)
    start = row[:, None] * HEAD
    value = tl.load(x + start + column[None, :], mask=inside, other=0.0).to(tl.float32)
    other = tl.load(x + start + partner[None, :], mask=inside, other=0.0).to(tl.float32)
    turned = tl.where(first[None, :], -other, other)
    angle = (row // HEADS % positions)[:, None] * HEAD + column[None, :]
    c = tl.load(cos + angle, mask=inside, other=0.0).to(tl.float32)
    s = tl.load(sin + angle, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + start + column[None, :], (value * c + turned * s).to(y.dtype.element_ty), mask=inside)
