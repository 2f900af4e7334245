"""Local correlation of two feature maps, for optical flow.

In PWC-Net it is the cost volume (Sun et al. 2018, arXiv:1709.02371), in RAFT the lookup, here without the volume of all
pairs (Teed and Deng 2020, arXiv:2003.12039).

y[(dy, dx), p] = scale · first[p] · second(coordinates[p] + (dx, dy)), for dx and dy from -radius to radius, where
`second` is read between pixels, with zeros around it. Coordinates are x and y in pixels of `second`, FP32. The windows
are row after row, as in PWC-Net, or column after column where `x_first`, as in RAFT. PWC-Net: coordinates of the
pixels themselves, scale 1 / channels; RAFT: scale 1 / sqrt(channels), and `second` may be a smaller map, coordinates
scaled with it. Summed in FP32, rounded once at the end.

Features are channels last, `map.permute(0, 2, 3, 1)`: a product then reads whole rows of memory. Reading between pixels
is linear, so a program takes one product for each of the (2 radius + 2)² whole pixels around a place and mixes those.
It does so for a tile of places, one after the other, whose windows overlap and so come from the L1 cache.
"""

import torch
import triton
import triton.language as tl

from aot.plugin import Launch, ceil_div, power_of_two

NAME = "aot::local_correlation"
SCHEMA = "(T first, T second, float32 coordinates, int radius=4, float scale=1.0, bool x_first=False) -> (T y)"
TYPES = {"T": "float32 float16 bfloat16"}
SHAPES = {
    "first": "batch height width channels",
    "second": "batch rows columns channels",
    "coordinates": "batch 2 height width",
}
SIZES = {"channels": (1, None)}
ATTRIBUTES = {"radius": [0, 1], "scale": [0.5]}
CASES = [
    {"batch": 2, "height": 5, "width": 7, "channels": 9, "rows": 3, "columns": 11, "radius": 1},
    {"batch": 1, "height": 3, "width": 2, "channels": 67, "rows": 4, "columns": 5, "radius": 4, "x_first": True},
    {"batch": 1, "height": 1, "width": 1, "channels": 1, "rows": 1, "columns": 1, "radius": 3},
    {"batch": 0, "height": 2, "width": 2, "channels": 2, "rows": 2, "columns": 2, "radius": 1},
    {"batch": 1, "height": 0, "width": 2, "channels": 2, "rows": 2, "columns": 2, "radius": 1},
    {"batch": 1, "height": 2, "width": 2, "channels": 2, "rows": 0, "columns": 2, "radius": 1},
    {"batch": 1, "height": 2, "width": 3, "channels": 131, "rows": 7, "columns": 9, "radius": 2, "x_first": True},
]
CONFIGS = [
    {"tile": 4, "channels": 64, "num_warps": 4},
    {"tile": 4, "channels": 32, "num_warps": 4},
    {"tile": 4, "channels": 64, "num_warps": 8},
    {"tile": 2, "channels": 64, "num_warps": 4},
    {"tile": 8, "channels": 64, "num_warps": 8},
    {"tile": 2, "channels": 128, "num_warps": 4},
]
SPACE = {"tile": [1, 2, 4, 8], "channels": [32, 64, 128], "num_warps": [2, 4, 8]}


def reference(first, second, coordinates, radius, scale, x_first):
    """The volume of all pairs, and a window of it for each place."""
    batch, height, width, channels = first.shape
    rows, columns = second.shape[1:3]
    volume = first.float().reshape(batch, height * width, channels)
    volume = volume @ second.float().reshape(batch, rows * columns, channels).transpose(1, 2)
    volume = torch.nn.functional.pad(volume, (0, 1))  # what lies outside
    x, y = coordinates.float().reshape(batch, 2, height * width, 1, 1).unbind(1)
    step = torch.arange(-radius, radius + 2, device=first.device)
    row, column = y.floor().long() + step[:, None], x.floor().long() + step
    inside = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
    index = torch.where(inside, row * columns + column, rows * columns)
    side = 2 * radius + 2
    found = volume.gather(2, index.reshape(batch, height * width, side * side))
    found = found.reshape(batch, height * width, side, side)
    right, below = x - x.floor(), y - y.floor()
    found = found[..., :-1] * (1 - right) + found[..., 1:] * right
    found = found[..., :-1, :] * (1 - below) + found[..., 1:, :] * below
    found = found.transpose(2, 3) if x_first else found
    found = (scale * found).permute(0, 2, 3, 1).reshape(batch, (side - 1) * (side - 1), height, width)
    return found.to(first.dtype)


def outputs(shapes, attributes):
    if not 0 <= attributes.radius <= 15:
        raise ValueError(f"radius is {attributes.radius}, and may be 0 to 15")
    batch, height, width, _ = shapes.first
    return ((batch, (2 * attributes.radius + 1) ** 2, height, width),)


def launch(shapes, attributes, config):
    batch, height, width, channels = shapes.first
    tile = config["tile"]
    window = power_of_two((2 * attributes.radius + 2) ** 2)
    block = min(config["channels"], power_of_two(channels, "the number of channels"), max(16, 16384 // window))
    return Launch(
        grid=(ceil_div(width, tile), ceil_div(height, tile), batch),
        scalars={"height": height, "width": width, "rows": shapes.second[1], "columns": shapes.second[2]},
        constants={
            "CHANNELS": channels,
            "RADIUS": attributes.radius,
            "SCALE": attributes.scale,
            "X_FIRST": attributes.x_first,
            "TILE": tile,
            "WINDOW": window,
            "BLOCK": block,
        },
    )


def sample(inputs, attributes):
    """Each pixel has moved by some pixels; some lead outside."""
    (height, width), (rows, columns) = inputs["first"].shape[1:3], inputs["second"].shape[1:3]
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    pixels = torch.stack((x * (columns / max(width, 1)), y * (rows / max(height, 1))))
    inputs["coordinates"] = pixels + 2 * inputs["coordinates"]
    return inputs


@triton.jit
def kernel(
    first,
    second,
    coordinates,
    height,
    width,
    rows,
    columns,
    y,
    CHANNELS: tl.constexpr,
    RADIUS: tl.constexpr,
    SCALE: tl.constexpr,
    X_FIRST: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK: tl.constexpr,
):
    SIDE: tl.constexpr = 2 * RADIUS + 2
    SPAN: tl.constexpr = 2 * RADIUS + 1
    batch = tl.program_id(2).to(tl.int64)
    step = tl.arange(0, WINDOW)
    step_x, step_y = step % SIDE, step // SIDE
    kept = (step_x < SPAN) & (step_y < SPAN)
    number = step_x * SPAN + step_y if X_FIRST else step_y * SPAN + step_x
    top_y, top_x = tl.program_id(1) * TILE, tl.program_id(0) * TILE
    for at_y in range(top_y, tl.minimum(top_y + TILE, height)):
        for at_x in range(top_x, tl.minimum(top_x + TILE, width)):
            at = (batch * 2 * height + at_y) * width + at_x
            across = tl.load(coordinates + at)
            down = tl.load(coordinates + at + height.to(tl.int64) * width)
            left, top = tl.floor(across), tl.floor(down)
            column = left.to(tl.int32) - RADIUS + step_x
            row = top.to(tl.int32) - RADIUS + step_y
            found = (step_y < SIDE) & (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
            one = ((batch * height + at_y) * width + at_x) * CHANNELS
            two = ((batch * rows + row) * columns + column) * CHANNELS
            total = tl.zeros((WINDOW, BLOCK), tl.float32)
            for start in range(0, CHANNELS, BLOCK):
                channel = start + tl.arange(0, BLOCK)
                real = channel < CHANNELS
                a = tl.load(first + one + channel, mask=real, other=0.0)
                b = tl.load(second + two[:, None] + channel[None, :], mask=found[:, None] & real[None, :], other=0.0)
                total += a.to(tl.float32)[None, :] * b.to(tl.float32)
            product = tl.sum(total, axis=1)
            product += (across - left) * (tl.gather(product, tl.minimum(step + 1, WINDOW - 1), 0) - product)
            product += (down - top) * (tl.gather(product, tl.minimum(step + SIDE, WINDOW - 1), 0) - product)
            at = ((batch * (SPAN * SPAN) + number) * height + at_y) * width + at_x
            tl.store(y + at, (SCALE * product).to(y.dtype.element_ty), mask=kept)
