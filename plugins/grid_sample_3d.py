"""Sampling of volumes, `torch.nn.functional.grid_sample` of 5-D tensors (Jaderberg et al. 2015, arXiv:1506.02025).

y[:, p] = x read at grid[p] = (x, y, z), each -1 to 1 across the volume: between the centres of the outermost voxels
where `align_corners`, else between its borders. `mode` is "bilinear" (of eight voxels) or "nearest" (halves to even);
`padding_mode` is "zeros" or "border", the nearest voxel inside. Computed in FP32 and rounded once at the end; the grid
is FP32, for FP16 would lose a tenth of a voxel of 400. Unlike torch's, x and y have their channels last: x.permute(0,
2, 3, 4, 1), and y.permute(0, 4, 1, 2, 3) in a model that is channels first. A voxel is then one run of memory, read 16
bytes at a time.

A program takes some places and a block of channels, so that a place is computed once for several channels; of fewer
channels than a block it takes more places.
"""

import torch
import triton
import triton.language as tl

from aot.plugin import Launch, ceil_div, power_of_two

NAME = "aot::grid_sample_3d"
SCHEMA = '(T x, float32 grid, str mode="bilinear", str padding_mode="zeros", bool align_corners=False) -> (T y)'
TYPES = {"T": "float32 float16 bfloat16"}
SHAPES = {"x": "batch depth height width channels", "grid": "batch out_depth out_height out_width 3"}
SIZES = {"channels": (1, None)}
ATTRIBUTES = {"mode": ["nearest"], "padding_mode": ["border"]}
CASES = [
    {"batch": 2, "channels": 3, "depth": 4, "height": 5, "width": 7, "out_depth": 3, "out_height": 5, "out_width": 11},
    {
        "batch": 1,
        "channels": 67,
        "depth": 3,
        "height": 2,
        "width": 5,
        "out_depth": 1,
        "out_height": 13,
        "out_width": 11,
    },
    {"batch": 1, "channels": 1, "depth": 1, "height": 1, "width": 1, "out_depth": 1, "out_height": 1, "out_width": 1},
    {"batch": 0, "channels": 2, "depth": 2, "height": 2, "width": 2, "out_depth": 2, "out_height": 2, "out_width": 2},
    {"batch": 1, "channels": 2, "depth": 0, "height": 2, "width": 2, "out_depth": 2, "out_height": 2, "out_width": 2},
    {"batch": 1, "channels": 2, "depth": 2, "height": 2, "width": 2, "out_depth": 2, "out_height": 0, "out_width": 2},
    {"batch": 2, "channels": 9, "depth": 7, "height": 5, "width": 3, "out_depth": 5, "out_height": 9, "out_width": 7},
]
CONFIGS = [
    {"places": 32, "channels": 64, "num_warps": 4},
    {"places": 64, "channels": 32, "num_warps": 4},
    {"places": 128, "channels": 16, "num_warps": 4},
    {"places": 64, "channels": 64, "num_warps": 8},
    {"places": 16, "channels": 128, "num_warps": 4},
    {"places": 256, "channels": 8, "num_warps": 4},
    {"places": 256, "channels": 1, "num_warps": 4},
]
SPACE = {"places": [8, 16, 32, 64, 128, 256], "channels": [1, 8, 16, 32, 64, 128], "num_warps": [1, 2, 4, 8]}


def known(mode, padding_mode):
    if mode not in ("bilinear", "nearest") or padding_mode not in ("zeros", "border"):
        raise ValueError(
            f"mode is {mode!r}, and may be 'bilinear' or 'nearest'; "
            f"padding_mode is {padding_mode!r}, and may be 'zeros' or 'border'"
        )


def reference(x, grid, mode, padding_mode, align_corners):
    known(mode, padding_mode)
    batch, *sizes, channels = x.shape
    out = grid.shape[1:4]
    voxels = sizes[0] * sizes[1] * sizes[2]
    rows = x.float().reshape(batch * voxels, channels)
    rows = torch.cat((rows, torch.zeros(1, channels, device=x.device)))
    where = []
    for axis, size in enumerate(sizes):
        at = (grid[..., 2 - axis].float() + 1) / 2 * (size - 1)
        if not align_corners:
            at = ((grid[..., 2 - axis].float() + 1) * size - 1) / 2
        where.append(at.clamp(min=0).clamp(max=size - 1) if padding_mode == "border" else at)
    total = torch.zeros(1, device=x.device)
    image = torch.arange(batch, device=x.device)[:, None, None, None]
    for corner in range(8 if mode == "bilinear" else 1):
        index, inside, share = image, True, torch.ones(1, device=x.device)
        for axis, (at, size) in enumerate(zip(where, sizes, strict=True)):
            near = at.floor().long() + (corner >> axis) % 2 if mode == "bilinear" else at.round().long()
            share = share * (1 - (at - near).abs()) if mode == "bilinear" else share
            inside = inside & (near >= 0) & (near < size)
            index = index * size + near
        found = rows.index_select(0, torch.where(inside, index, batch * voxels).flatten())
        total = total + share.reshape(-1, 1) * found
    return total.reshape(batch, *out, channels).to(x.dtype)


def outputs(shapes, attributes):
    known(attributes.mode, attributes.padding_mode)
    return ((*shapes.grid[:4], shapes.x[4]),)


def launch(shapes, attributes, config):
    batch, depth, height, width, channels = shapes.x
    places = shapes.grid[1] * shapes.grid[2] * shapes.grid[3]
    block = min(config["channels"], power_of_two(channels, "the number of channels"))
    taken = config["places"] * config["channels"] // block
    return Launch(
        grid=(ceil_div(places, taken) * ceil_div(channels, block), batch),
        scalars={"depth": depth, "height": height, "width": width, "places": places},
        constants={
            "CHANNELS": channels,
            "NEAREST": attributes.mode == "nearest",
            "BORDER": attributes.padding_mode == "border",
            "ALIGNED": attributes.align_corners,
            "PLACES": taken,
            "BLOCK": block,
        },
    )


def sample(inputs, attributes):
    along = [torch.linspace(-1.2, 1.2, size) for size in inputs["grid"].shape[1:4]]  # some of them outside
    places = torch.stack(torch.meshgrid(*along, indexing="ij")[::-1], -1)
    inputs["grid"] = places + 0.02 * inputs["grid"]
    return inputs


@triton.jit
def position(grid, at, inside, size, NEAREST: tl.constexpr, BORDER: tl.constexpr, ALIGNED: tl.constexpr):
    """Where along an axis to read, in voxels."""
    value = tl.load(grid + at, mask=inside, other=0.0) + 1
    value = value * 0.5 * (size - 1) if ALIGNED else (value * size - 1) * 0.5
    if BORDER:
        value = tl.minimum(tl.maximum(value, 0.0), (size - 1).to(tl.float32))
    if NEAREST:
        # Beyond 2^22 every sum with 1.5 · 2^23 is a whole number, rounded to even; what is outside stays outside.
        value = tl.minimum(tl.maximum(value, -2.0), (size + 1).to(tl.float32))
        value = (value + 12582912.0) - 12582912.0
    return value


@triton.jit
def kernel(
    x,
    grid,
    depth,
    height,
    width,
    places,
    y,
    CHANNELS: tl.constexpr,
    NEAREST: tl.constexpr,
    BORDER: tl.constexpr,
    ALIGNED: tl.constexpr,
    PLACES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # Blocks of channels follow each other, so that the same places come from the cache.
    blocks: tl.constexpr = (CHANNELS + BLOCK - 1) // BLOCK
    place = (tl.program_id(0) // blocks).to(tl.int64) * PLACES + tl.arange(0, PLACES)
    channel = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    batch = tl.program_id(1).to(tl.int64)
    inside = place < places
    at = (batch * places + place) * 3
    across = position(grid, at, inside, width, NEAREST, BORDER, ALIGNED)
    down = position(grid, at + 1, inside, height, NEAREST, BORDER, ALIGNED)
    deep = position(grid, at + 2, inside, depth, NEAREST, BORDER, ALIGNED)
    left, top, front = tl.floor(across), tl.floor(down), tl.floor(deep)
    wanted = (channel < CHANNELS)[None, :]
    total = tl.zeros((PLACES, BLOCK), tl.float32)
    for corner in tl.static_range(1 if NEAREST else 8):
        x_ = left.to(tl.int32) + corner % 2
        y_ = top.to(tl.int32) + corner // 2 % 2
        z_ = front.to(tl.int32) + corner // 4
        share = across - left if corner % 2 else left + 1 - across
        share *= down - top if corner // 2 % 2 else top + 1 - down
        share *= deep - front if corner // 4 else front + 1 - deep
        found = inside & (x_ >= 0) & (x_ < width) & (y_ >= 0) & (y_ < height) & (z_ >= 0) & (z_ < depth)
        voxel = ((batch * depth + z_) * height + y_) * width + x_
        read = tl.load(x + voxel[:, None] * CHANNELS + channel[None, :], mask=found[:, None] & wanted, other=0.0)
        total += share[:, None] * read.to(tl.float32)
    at = (batch * places + place)[:, None] * CHANNELS + channel[None, :]
    tl.store(y + at, total.to(y.dtype.element_ty), mask=inside[:, None] & wanted)
