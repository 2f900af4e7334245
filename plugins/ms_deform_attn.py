"""Multi-scale deformable attention (Zhu et al. 2021, Deformable DETR, arXiv:2010.04159, eq. 3).

y[q] = sum over levels l and points p of weights[q, l, p] · value_l(locations[q, l, p]) for each head, where value_l is
the feature map of a level, the rows of `value` from starts[l] on, read between its pixels: at x · columns - 1/2 and
y · rows - 1/2 (locations are x and y, 0 to 1 from border to border), with zeros around it. `shapes` holds (rows,
columns) of each level; starts[l] + rows · columns must not exceed the positions of `value`. Computed in FP32 and
rounded once at the end. Locations are FP32: FP16 would lose a tenth of a pixel of a map of 200.

A program takes some queries of one head, and several points of each at once: all their corners are under way together,
each a contiguous part of a row.
"""

import torch
import triton
import triton.language as tl

from aot.plugin import Launch, ceil_div, fixed, power_of_two

NAME = "aot::ms_deform_attn"
SCHEMA = "(T value, I shapes, I starts, float32 locations, T weights) -> (T y)"
TYPES = {"T": "float32 float16 bfloat16", "I": "int64 int32"}
SHAPES = {
    "value": "batch positions heads width",
    "shapes": "levels 2",
    "starts": "levels",
    "locations": "batch queries heads levels points 2",
    "weights": "batch queries heads levels points",
}
SIZES = {"heads": (1, 64), "width": (1, 1024), "levels": (1, 16), "points": (1, 32)}
CASES = [
    {"batch": 2, "positions": 35, "heads": 3, "width": 8, "levels": 2, "queries": 5, "points": 3},
    {"batch": 1, "positions": 67, "heads": 1, "width": 32, "levels": 3, "queries": 17, "points": 4},
    {"batch": 1, "positions": 131, "heads": 1, "width": 67, "levels": 1, "queries": 3, "points": 7},
    {"batch": 1, "positions": 9, "heads": 1, "width": 1, "levels": 5, "queries": 9, "points": 9},
    {"batch": 1, "positions": 1, "heads": 2, "width": 3, "levels": 1, "queries": 1, "points": 1},
    {"batch": 0, "positions": 5, "heads": 2, "width": 4, "levels": 1, "queries": 3, "points": 2},
    {"batch": 1, "positions": 0, "heads": 2, "width": 4, "levels": 1, "queries": 3, "points": 2},
    {"batch": 1, "positions": 5, "heads": 2, "width": 4, "levels": 1, "queries": 0, "points": 2},
    {"batch": 2, "positions": 40, "heads": 2, "width": 16, "levels": 4, "queries": 7, "points": 4},
]
CONFIGS = [
    {"rows": 4, "points": 16, "num_warps": 4},
    {"rows": 8, "points": 8, "num_warps": 4},
    {"rows": 16, "points": 4, "num_warps": 4},
    {"rows": 32, "points": 1, "num_warps": 4},
    {"rows": 2, "points": 16, "num_warps": 2},
    {"rows": 16, "points": 8, "num_warps": 8},
]
SPACE = {"rows": [1, 2, 4, 8, 16, 32], "points": [1, 4, 8, 16], "num_warps": [1, 2, 4, 8]}


def reference(value, shapes, starts, locations, weights):
    batch, positions, heads, width = value.shape
    queries, levels, points = weights.shape[1], weights.shape[3], weights.shape[4]
    outside = batch * positions * heads
    rows = torch.cat((value.float().reshape(outside, width), torch.zeros(1, width, device=value.device)))
    height, breadth = shapes[:, 0].long()[:, None], shapes[:, 1].long()[:, None]
    x, y = locations[..., 0] * breadth - 0.5, locations[..., 1] * height - 0.5
    image = torch.arange(batch, device=value.device)[:, None, None, None, None] * positions + starts.long()[:, None]
    head = torch.arange(heads, device=value.device)[:, None, None]
    total = torch.zeros(1, device=value.device)
    for down in (0, 1):
        for right in (0, 1):
            row, column = y.floor().long() + down, x.floor().long() + right
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < breadth)
            index = torch.where(inside, (image + row * breadth + column) * heads + head, outside)
            found = rows.index_select(0, index.flatten()).reshape(batch, queries, heads, levels * points, width)
            share = (1 - (y - row).abs()) * (1 - (x - column).abs()) * weights.float()
            total = total + (share.reshape(batch, queries, heads, levels * points, 1) * found).sum(3)
    return total.reshape(batch, queries, heads * width).to(value.dtype)


def outputs(shapes, attributes):
    batch, queries, heads = shapes.locations[:3]
    return ((batch, queries, heads * shapes.value[3]),)


def launch(shapes, attributes, config):
    batch, positions, heads, width = shapes.value
    queries = shapes.locations[1]
    levels, per_level = shapes.locations[3:5]
    points = power_of_two(levels * per_level, "the number of points of a query")
    return Launch(
        grid=(ceil_div(queries, config["rows"]), heads, batch),
        scalars={"positions": positions, "queries": queries},
        constants={
            "HEADS": fixed(heads, "the number of heads"),
            "WIDTH": width,
            "LEVELS": levels,
            "PER_LEVEL": per_level,
            "ROWS": config["rows"],
            "POINTS": min(config["points"], points),
            "BLOCK": power_of_two(width, "the width of a head"),
        },
    )


def sample(inputs, attributes):
    """Maps of half the side from level to level, and queries on a grid that read around themselves."""
    positions, queries = inputs["value"].shape[1], inputs["locations"].shape[1]
    start, side = 0, int((positions * 3 / 4) ** 0.5)
    for level in range(len(inputs["starts"])):
        inputs["shapes"][level] = side
        inputs["starts"][level] = min(start, positions - side * side)
        start, side = start + side * side, max(side // 2, min(positions, 1))
    across = max(int(queries**0.5), 1)
    at = torch.arange(queries)
    centre = torch.stack((at % across + 0.5, at // across + 0.5), -1) / across
    inputs["locations"] = centre[:, None, None, None] + 0.1 * inputs["locations"]
    return inputs


@triton.jit
def kernel(
    value,
    shapes,
    starts,
    locations,
    weights,
    positions,
    queries,
    y,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    LEVELS: tl.constexpr,
    PER_LEVEL: tl.constexpr,
    ROWS: tl.constexpr,
    POINTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    query = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    channel = tl.arange(0, BLOCK)
    row = (batch * queries + query) * HEADS + head
    start_of_image = value + batch * positions * (HEADS * WIDTH) + head * WIDTH
    total = tl.zeros((ROWS, POINTS, BLOCK), tl.float32)
    for first in range(0, LEVELS * PER_LEVEL, POINTS):
        point = first + tl.arange(0, POINTS)
        there = point < LEVELS * PER_LEVEL
        level = point // PER_LEVEL
        height = tl.load(shapes + 2 * level, mask=there, other=0).to(tl.int32)
        breadth = tl.load(shapes + 2 * level + 1, mask=there, other=0).to(tl.int32)
        start = tl.load(starts + level, mask=there, other=0).to(tl.int32)
        inside = (query < queries)[:, None] & there[None, :]
        at = row[:, None] * (LEVELS * PER_LEVEL) + point[None, :]
        weight = tl.load(weights + at, mask=inside, other=0.0).to(tl.float32)
        across = tl.load(locations + 2 * at, mask=inside, other=0.0) * breadth.to(tl.float32)[None, :] - 0.5
        down = tl.load(locations + 2 * at + 1, mask=inside, other=0.0) * height.to(tl.float32)[None, :] - 0.5
        left, top = tl.floor(across), tl.floor(down)
        for corner in tl.static_range(4):
            x = left.to(tl.int32) + corner % 2
            y_ = top.to(tl.int32) + corner // 2
            share = weight * (across - left if corner % 2 else left + 1 - across)
            share *= down - top if corner // 2 else top + 1 - down
            found = inside & (x >= 0) & (x < breadth[None, :]) & (y_ >= 0) & (y_ < height[None, :])
            index = (start[None, :] + y_ * breadth[None, :] + x).to(tl.int64) * (HEADS * WIDTH)
            read = tl.load(
                start_of_image + index[:, :, None] + channel[None, None, :],
                mask=found[:, :, None] & (channel < WIDTH)[None, None, :],
                other=0.0,
            )
            total += share[:, :, None] * read.to(tl.float32)
    at = row[:, None] * WIDTH + channel[None, :]
    inside = (query < queries)[:, None] & (channel < WIDTH)[None, :]
    tl.store(y + at, tl.sum(total, axis=1).to(y.dtype.element_ty), mask=inside)
