# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""What the plugins of norms share: their launch, and the parts of their kernels.

A program takes a row or a few, or a fixed number of programs go over all rows.

Imports triton; only files of plugins import it.
"""

from __future__ import annotations

import math
from typing import Any

import triton
import triton.language as tl

from aot.plugin import Launch, at_most, ceil_div, power_of_two


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
def added(x, residual, total, row, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """x + residual of some rows, stored as `total`: in FP32, where it lies, and what of it is there."""
    at = row[:, None] * WIDTH + tl.arange(0, BLOCK)[None, :]
    inside = (row[:, None] < rows) & (tl.arange(0, BLOCK)[None, :] < WIDTH)
    value = tl.load(x + at, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
    value += tl.load(residual + at, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
    tl.store(total + at, value.to(total.dtype.element_ty), mask=inside)
    return value, at, inside


@triton.jit
def over_rms(value, WIDTH: tl.constexpr, EPS: tl.constexpr):
    """Each row over the root of the mean of its squares."""
    return value * tl.rsqrt(tl.sum(value * value, axis=1) / WIDTH + EPS)[:, None]


@triton.jit
def standardized(value, inside, WIDTH: tl.constexpr, EPS: tl.constexpr):
    """Each row less its mean, over its standard deviation."""
    value = tl.where(inside, value - (tl.sum(value, axis=1) / WIDTH)[:, None], 0.0)
    return over_rms(value, WIDTH, EPS)
