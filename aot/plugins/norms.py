# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""What the plugins of norms share: their launch, and the parts of their kernels.

A program takes a row or a few, or a fixed number of programs go over all rows. With `again`, a row is not held while
its sum is taken but read once more, from the cache: more rows are on their way at a time, which matters where the rows
together are larger than the caches (16,384 rows of 4,096 in BF16 take 0.129 ms on an H200 in place of 0.134).

Imports triton; only files of plugins import it.
"""

from __future__ import annotations

import math
from typing import Any

import triton
import triton.language as tl

from aot.plugin import Launch, at_most, ceil_div, power_of_two

CONFIGS = [
    {"rows": 1, "num_warps": 4},
    {"rows": 1, "num_warps": 8},
    {"rows": 1, "num_warps": 16},
    {"rows": 1, "again": True, "num_warps": 4},
    {"rows": 1, "again": True, "num_warps": 16},
    {"rows": 2, "num_warps": 4},
    {"rows": 4, "num_warps": 4},
    {"rows": 1, "programs": 1056, "ahead": 2, "num_warps": 4},
    {"rows": 1, "programs": 528, "ahead": 2, "num_warps": 8},
    {"rows": 1, "programs": 528, "ahead": 3, "num_warps": 4},
]


def launch(shapes: Any, attributes: Any, config: Any, **constants: Any) -> Launch:
    """Of x [..., width]. constants: of the kernel, beside those of every norm.

    Raises PluginError for a width that varies.
    """
    rows = math.prod(shapes.x[:-1])
    programs = ceil_div(rows, config["rows"])
    block = power_of_two(shapes.x[-1], "the normalized width")
    fits = block * config["rows"] * config.get("ahead", 1) <= 12288  # FP32 of both inputs, in 96 KiB
    return Launch(
        grid=(at_most(programs, config["programs"]) if "programs" in config else programs,),
        scalars={"rows": rows},
        constants={
            "WIDTH": shapes.x[-1],
            "EPS": attributes.eps,
            "ROWS": config["rows"],
            "AGAIN": config.get("again", False),
            "AHEAD": config.get("ahead", 1) if fits else 1,
            "BLOCK": block,
            **constants,
        },
    )


@triton.jit
def column(values, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """What is given for each column, in FP32."""
    at = tl.arange(0, BLOCK)
    return tl.load(values + at, mask=at < WIDTH, other=0.0).to(tl.float32)


@triton.jit
def both(x, residual, at, inside, POLICY: tl.constexpr):
    """x + residual in FP32. POLICY: how soon the cache lets go of them."""
    value = tl.load(x + at, mask=inside, other=0.0, eviction_policy=POLICY).to(tl.float32)
    return value + tl.load(residual + at, mask=inside, other=0.0, eviction_policy=POLICY).to(tl.float32)


@triton.jit
def added(x, residual, total, row, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr, AGAIN: tl.constexpr):
    """x + residual of some rows, stored as `total`: in FP32, where it lies, and what of it is there."""
    at = row[:, None] * WIDTH + tl.arange(0, BLOCK)[None, :]
    inside = (row[:, None] < rows) & (tl.arange(0, BLOCK)[None, :] < WIDTH)
    value = both(x, residual, at, inside, "evict_last" if AGAIN else "")
    tl.store(total + at, value.to(total.dtype.element_ty), mask=inside)
    return value, at, inside


@triton.jit
def over_rms(value, x, residual, at, inside, WIDTH: tl.constexpr, EPS: tl.constexpr, AGAIN: tl.constexpr):
    """Each row of what `added` gave over the root of the mean of its squares."""
    factor = tl.rsqrt(tl.sum(value * value, axis=1) / WIDTH + EPS)[:, None]
    if AGAIN:
        value = both(x, residual, at, inside, "evict_first")
    return value * factor


@triton.jit
def standardized(value, x, residual, at, inside, WIDTH: tl.constexpr, EPS: tl.constexpr, AGAIN: tl.constexpr):
    """Each row of what `added` gave less its mean, over its standard deviation."""
    mean = (tl.sum(value, axis=1) / WIDTH)[:, None]
    value = tl.where(inside, value - mean, 0.0)
    factor = tl.rsqrt(tl.sum(value * value, axis=1) / WIDTH + EPS)[:, None]
    if AGAIN:
        value = both(x, residual, at, inside, "evict_first") - mean
    return value * factor
