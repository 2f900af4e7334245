"""Deformable convolution, version 2 (Zhu et al. 2019, arXiv:1811.11168, eq. 1), with torchvision's meaning.

y[o] = bias[o] + sum over taps k and channels c of weight[o, k, c] · mask[g, k] · x_c(p_k + offset[g, k]), where p_k is
the place of the tap without an offset, x_c is read between pixels with zeros around it, and g is the offset group of c.
Inputs are those of `torchvision.ops.deform_conv2d`, but for the weight, whose channels are last: a constant transposed
once, weight.permute(0, 2, 3, 1), so that the product reads whole rows. Version 1 has ones as its mask; no bias is
zeros. The size of the output is that of `offset`. Sampled in FP32, rounded to the input's dtype for the product, which
is summed in FP32.

An implicit matrix product: a program samples a block of channels at its pixels and multiplies it with all its rows of
the weight at once, so that nothing that is sampled goes to memory. FP32 is multiplied as three products of TF32.
"""

import torch
import triton
import triton.language as tl

from aot.plugin import Launch, ceil_div, fixed, power_of_two

NAME = "aot::deform_conv2d"
SCHEMA = """(T x, T offset, T mask, T weight, T bias, int stride_h=1, int stride_w=1, int padding_h=0, int padding_w=0,
    int dilation_h=1, int dilation_w=1) -> (T y)"""
TYPES = {"T": "float32 float16 bfloat16"}
SHAPES = {
    "x": "batch channels height width",
    "offset": "batch offsets out_height out_width",
    "mask": "batch taps out_height out_width",
    "weight": "out_channels kernel_h kernel_w channels",
    "bias": "out_channels",
}
SIZES = {
    "channels": (1, None),
    "taps": (1, None),
    "kernel_h": (1, None),
    "kernel_w": (1, None),
    "out_channels": (1, None),
}
ATTRIBUTES = {
    "stride_h": [2],
    "stride_w": [3],
    "padding_h": [2],
    "padding_w": [1],
    "dilation_h": [2],
    "dilation_w": [3],
}
CASES = [
    {"batch": 2, "channels": 6, "height": 9, "width": 7, "offsets": 36, "taps": 18, "out_height": 5, "out_width": 6,
     "kernel_h": 3, "kernel_w": 3, "out_channels": 5, "padding_h": 1, "padding_w": 1},
    {"batch": 1, "channels": 67, "height": 5, "width": 9, "offsets": 18, "taps": 9, "out_height": 5, "out_width": 7,
     "kernel_h": 3, "kernel_w": 3, "out_channels": 131, "dilation_h": 2},
    {"batch": 1, "channels": 3, "height": 7, "width": 5, "offsets": 12, "taps": 6, "out_height": 3, "out_width": 2,
     "kernel_h": 1, "kernel_w": 2, "out_channels": 1, "stride_h": 2, "stride_w": 3},
    {"batch": 2, "channels": 1, "height": 1, "width": 1, "offsets": 2, "taps": 1, "out_height": 1, "out_width": 1,
     "kernel_h": 1, "kernel_w": 1, "out_channels": 1},
    {"batch": 0, "channels": 1, "height": 3, "width": 3, "offsets": 2, "taps": 1, "out_height": 3, "out_width": 3,
     "kernel_h": 1, "kernel_w": 1, "out_channels": 3},
    {"batch": 1, "channels": 2, "height": 0, "width": 3, "offsets": 2, "taps": 1, "out_height": 2, "out_width": 3,
     "kernel_h": 1, "kernel_w": 1, "out_channels": 3},
    {"batch": 1, "channels": 20, "height": 6, "width": 7, "offsets": 16, "taps": 8, "out_height": 19, "out_width": 2,
     "kernel_h": 2, "kernel_w": 2, "out_channels": 17, "padding_w": 1, "dilation_w": 3},
]  # fmt: skip
CONFIGS = [
    {"pixels": 32, "rows": 256, "channels": 32, "num_warps": 8, "num_stages": 1},
    {"pixels": 32, "rows": 256, "channels": 32, "num_warps": 8, "num_stages": 2},
    {"pixels": 64, "rows": 256, "channels": 32, "num_warps": 16, "num_stages": 1},
    {"pixels": 64, "rows": 128, "channels": 32, "num_warps": 8, "num_stages": 1},
    {"pixels": 32, "rows": 128, "channels": 32, "num_warps": 8, "num_stages": 1},
    {"pixels": 32, "rows": 256, "channels": 16, "num_warps": 8, "num_stages": 1},
    {"pixels": 16, "rows": 256, "channels": 64, "num_warps": 8, "num_stages": 1},
    {"pixels": 64, "rows": 64, "channels": 32, "num_warps": 8, "num_stages": 1},
]
SPACE = {
    "pixels": [16, 32, 64, 128],
    "rows": [64, 128, 256],
    "channels": [16, 32, 64],
    "num_warps": [4, 8, 16],
    "num_stages": [1, 2, 3],
}


def groups_of(shapes):
    """The number of offset groups. Raises ValueError for channels that do not fit together."""
    channels, offsets, taps = (
        fixed(size, "a number of channels") for size in (shapes.x[1], shapes.offset[1], shapes.mask[1])
    )
    _, kernel_h, kernel_w, _ = shapes.weight
    groups = taps // (kernel_h * kernel_w)
    if offsets != 2 * taps or taps != groups * kernel_h * kernel_w or channels % groups:
        raise ValueError(
            f"x has {channels} channels, offset {offsets} and mask {taps}; with {kernel_h} x {kernel_w} taps and G "
            f"offset groups those must be a multiple of G, {2 * kernel_h * kernel_w} G and {kernel_h * kernel_w} G"
        )
    return groups


def reference(x, offset, mask, weight, bias, stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w):
    batch, channels, height, width = x.shape
    out_height, out_width = offset.shape[2:]
    out_channels, kernel_h, kernel_w, _ = weight.shape
    groups = mask.shape[1] // (kernel_h * kernel_w)
    offset = offset.float().reshape(batch, groups, kernel_h, kernel_w, 2, out_height, out_width)

    def places(count, stride, padding, taps, dilation):
        along = torch.arange(count, device=x.device) * stride - padding
        return along + torch.arange(taps, device=x.device)[:, None] * dilation

    down = offset[:, :, :, :, 0] + places(out_height, stride_h, padding_h, kernel_h, dilation_h)[:, None, :, None]
    across = offset[:, :, :, :, 1] + places(out_width, stride_w, padding_w, kernel_w, dilation_w)[:, None]
    group = torch.arange(channels, device=x.device) // (channels // groups)
    outside = height * width
    flat = torch.nn.functional.pad(x.float().reshape(batch, channels, outside), (0, 1))  # what lies outside
    sampled = torch.zeros(1, device=x.device)
    taken = kernel_h * kernel_w * out_height * out_width
    for below in (0, 1):
        for right in (0, 1):
            row, column = down.floor().long() + below, across.floor().long() + right
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            index = torch.where(inside, row * width + column, outside).reshape(batch, groups, taken)
            share = (1 - (down - row).abs()) * (1 - (across - column).abs())
            found = flat.gather(2, index.index_select(1, group))
            share = share.reshape(batch, groups, taken) * mask.float().reshape(batch, groups, taken)
            sampled = sampled + share.index_select(1, group) * found
    columns = sampled.reshape(batch, channels * kernel_h * kernel_w, out_height * out_width)
    rows = weight.float().permute(0, 3, 1, 2).reshape(out_channels, channels * kernel_h * kernel_w)
    y = rows @ columns + bias.float()[:, None]
    return y.reshape(batch, out_channels, out_height, out_width).to(x.dtype)


def outputs(shapes, attributes):
    groups_of(shapes)
    return ((shapes.x[0], shapes.weight[0], *shapes.offset[2:]),)


def launch(shapes, attributes, config):
    batch, channels, height, width = shapes.x
    out_height, out_width = shapes.offset[2:]
    out_channels, kernel_h, kernel_w, _ = shapes.weight
    groups = groups_of(shapes)
    of_group = channels // groups
    rows = max(16, min(config["rows"], power_of_two(out_channels, "the number of output channels")))
    return Launch(
        grid=(ceil_div(out_height * out_width, config["pixels"]), ceil_div(out_channels, rows), batch),
        scalars={"height": height, "width": width, "out_height": out_height, "out_width": out_width},
        constants={
            "CHANNELS": channels,
            "OUT_CHANNELS": out_channels,
            "GROUPS": groups,
            "OF_GROUP": of_group,
            "KERNEL_H": kernel_h,
            "KERNEL_W": kernel_w,
            "STRIDE_H": attributes.stride_h,
            "STRIDE_W": attributes.stride_w,
            "PADDING_H": attributes.padding_h,
            "PADDING_W": attributes.padding_w,
            "DILATION_H": attributes.dilation_h,
            "DILATION_W": attributes.dilation_w,
            "PIXELS": config["pixels"],
            "ROWS": rows,
            "BLOCK": max(16, min(config["channels"], power_of_two(of_group))),
        },
    )


def sample(inputs, attributes):
    inputs["offset"] *= 2  # some of them lead outside
    return inputs


@triton.jit
def corner(image, plane, of_channel, inside, x, y, share, height, width):
    """One of the four pixels around each place, of a block of channels, times its share."""
    found = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    at = plane[:, None] + (y * width + x)[None, :]
    read = tl.load(image + at, mask=(of_channel[:, None] & (inside & found)[None, :]), other=0.0)
    return share[None, :] * read.to(tl.float32)


@triton.jit
def kernel(
    x,
    offset,
    mask,
    weight,
    bias,
    height,
    width,
    out_height,
    out_width,
    y,
    CHANNELS: tl.constexpr,
    OUT_CHANNELS: tl.constexpr,
    GROUPS: tl.constexpr,
    OF_GROUP: tl.constexpr,
    KERNEL_H: tl.constexpr,
    KERNEL_W: tl.constexpr,
    STRIDE_H: tl.constexpr,
    STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr,
    PADDING_W: tl.constexpr,
    DILATION_H: tl.constexpr,
    DILATION_W: tl.constexpr,
    PIXELS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    TAPS: tl.constexpr = KERNEL_H * KERNEL_W
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    batch = tl.program_id(2).to(tl.int64)
    area = out_height * out_width
    inside = pixel < area
    first_y = pixel // out_width * STRIDE_H - PADDING_H
    first_x = pixel % out_width * STRIDE_W - PADDING_W
    image = x + batch * CHANNELS * height * width
    total = tl.zeros((ROWS, PIXELS), tl.float32)
    for slot in range(GROUPS * TAPS):
        tap = slot % TAPS
        at = (batch * (GROUPS * TAPS) + slot) * area
        down = tl.load(offset + 2 * at + pixel, mask=inside, other=0.0).to(tl.float32)
        across = tl.load(offset + 2 * at + area + pixel, mask=inside, other=0.0).to(tl.float32)
        gain = tl.load(mask + at + pixel, mask=inside, other=0.0).to(tl.float32)
        down += (first_y + tap // KERNEL_W * DILATION_H).to(tl.float32)
        across += (first_x + tap % KERNEL_W * DILATION_W).to(tl.float32)
        top, left = tl.floor(down), tl.floor(across)
        below, right = down - top, across - left
        y0, x0 = top.to(tl.int32), left.to(tl.int32)
        above, near = gain * (1 - below), gain * below
        for start in range(0, OF_GROUP, BLOCK):
            of_group = start + tl.arange(0, BLOCK)
            channel = slot // TAPS * OF_GROUP + of_group
            real = of_group < OF_GROUP
            plane = channel.to(tl.int64) * height * width
            sampled = corner(image, plane, real, inside, x0, y0, above * (1 - right), height, width)
            sampled += corner(image, plane, real, inside, x0 + 1, y0, above * right, height, width)
            sampled += corner(image, plane, real, inside, x0, y0 + 1, near * (1 - right), height, width)
            sampled += corner(image, plane, real, inside, x0 + 1, y0 + 1, near * right, height, width)
            factor = tl.load(
                weight + (row.to(tl.int64)[:, None] * TAPS + tap) * CHANNELS + channel[None, :],
                mask=(row < OUT_CHANNELS)[:, None] & real[None, :],
                other=0.0,
            )
            total = tl.dot(factor, sampled.to(factor.dtype), total, input_precision="tf32x3")
    total += tl.load(bias + row, mask=row < OUT_CHANNELS, other=0.0).to(tl.float32)[:, None]
    at = (batch * OUT_CHANNELS + row)[:, None] * area + pixel[None, :]
    written = (row < OUT_CHANNELS)[:, None] & inside[None, :]
    tl.store(y + at, total.to(y.dtype.element_ty), mask=written)
