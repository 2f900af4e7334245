"""Deformable convolution, version 2 (Zhu et al. 2019, arXiv:1811.11168, eq. 1), with torchvision's meaning.

y[o] = bias[o] + sum over taps k and channels c of weight[o, k, c] · mask[g, k] · x_c(p_k + offset[g, k]), where p_k is
the place of the tap without an offset, x_c is read between pixels with zeros around it, and g is the offset group of c.
Inputs are those of `torchvision.ops.deform_conv2d`, but x, weight and y have their channels last: x.permute(0, 2, 3, 1)
and, once, weight.permute(0, 2, 3, 1). A pixel is then one run of memory, read 16 bytes at a time. Version 1 has ones as
its mask; no bias is zeros. Height and width of the output are those of `offset`. Sampled in FP32, rounded to the
input's dtype for the product, which is summed in FP32; FP32 is multiplied as three products of TF32.

An implicit matrix product: a program samples a block of channels of a tap at its pixels and multiplies it with all its
rows of the weight, so that nothing that is sampled goes to memory. Each block is read while the one before is
multiplied; in FP32 a block has half of `channels`. Either all blocks of a tap follow each other, and a place is
computed once for all of them, or all taps of a block (`taps_inside`), which read around the same pixels and so from the
L1 cache.
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
    "x": "batch height width channels",
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
    {"pixels": 64, "rows": 256, "channels": 32, "taps_inside": True, "num_warps": 8, "num_stages": 3},
    {"pixels": 64, "rows": 256, "channels": 32, "taps_inside": False, "num_warps": 8, "num_stages": 3},
    {"pixels": 64, "rows": 256, "channels": 64, "taps_inside": False, "num_warps": 8, "num_stages": 2},
    {"pixels": 128, "rows": 256, "channels": 32, "taps_inside": True, "num_warps": 8, "num_stages": 3},
    {"pixels": 128, "rows": 256, "channels": 32, "taps_inside": False, "num_warps": 16, "num_stages": 3},
    {"pixels": 64, "rows": 128, "channels": 32, "taps_inside": True, "num_warps": 4, "num_stages": 3},
    {"pixels": 32, "rows": 128, "channels": 64, "taps_inside": False, "num_warps": 4, "num_stages": 2},
    {"pixels": 16, "rows": 128, "channels": 128, "taps_inside": False, "num_warps": 4, "num_stages": 2},
]
SPACE = {
    "pixels": [16, 32, 64, 128],
    "rows": [64, 128, 256],
    "channels": [16, 32, 64, 128],
    "taps_inside": [True, False],
    "num_warps": [4, 8, 16],
    "num_stages": [2, 3, 4],
}


def groups_of(shapes):
    """The number of offset groups. Raises ValueError for channels that do not fit together."""
    channels, offsets, taps = (
        fixed(size, "a number of channels") for size in (shapes.x[3], shapes.offset[1], shapes.mask[1])
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
    batch, height, width, channels = x.shape
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
    flat = torch.nn.functional.pad(
        x.float().reshape(batch, outside, channels).transpose(1, 2), (0, 1)
    )  # what lies outside
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
    y = (rows @ columns).transpose(1, 2) + bias.float()
    return y.reshape(batch, out_height, out_width, out_channels).to(x.dtype)


def outputs(shapes, attributes):
    groups_of(shapes)
    return ((shapes.x[0], *shapes.offset[2:], shapes.weight[0]),)


def launch(shapes, attributes, config):
    batch, height, width, channels = shapes.x
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
            "MOST": max(16, min(config["channels"], power_of_two(of_group))),
            "TAPS_INSIDE": config["taps_inside"],
        },
    )


def sample(inputs, attributes):
    inputs["offset"] *= 2  # some of them lead outside
    return inputs


@triton.jit
def corners(offset, mask, at, area, pixel, inside, tap_y, tap_x, height, width):
    """What a tap reads at each pixel: the index of the upper left one of four pixels of x, and for all four (upper
    left, upper right, lower left, lower right) their shares and whether they exist."""
    down = tl.load(offset + 2 * at + pixel, mask=inside, other=0.0).to(tl.float32) + tap_y.to(tl.float32)
    across = tl.load(offset + 2 * at + area + pixel, mask=inside, other=0.0).to(tl.float32) + tap_x.to(tl.float32)
    gain = tl.load(mask + at + pixel, mask=inside, other=0.0).to(tl.float32)
    top, left = tl.floor(down), tl.floor(across)
    row, column = top.to(tl.int32), left.to(tl.int32)
    is_above, is_below = inside & (row >= 0) & (row < height), inside & (row >= -1) & (row < height - 1)
    is_left, is_right = (column >= 0) & (column < width), (column >= -1) & (column < width - 1)
    below, right = gain * (down - top), across - left
    above, near = gain - below, 1 - right
    place = row.to(tl.int64) * width + column
    shares = (above * near, above * right, below * near, below * right)
    return place, shares, (is_above & is_left, is_above & is_right, is_below & is_left, is_below & is_right)


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
    MOST: tl.constexpr,
    TAPS_INSIDE: tl.constexpr,
):
    BLOCK: tl.constexpr = 16 if MOST == 16 else MOST * 16 // x.dtype.element_ty.primitive_bitwidth
    TAPS: tl.constexpr = KERNEL_H * KERNEL_W
    BLOCKS: tl.constexpr = (OF_GROUP + BLOCK - 1) // BLOCK
    STEPS: tl.constexpr = GROUPS * TAPS * BLOCKS
    OF_PLACE: tl.constexpr = 1 if TAPS_INSIDE else BLOCKS  # steps that read at the same places
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    batch = tl.program_id(2).to(tl.int64)
    area = out_height * out_width
    inside = pixel < area
    first_y = pixel // out_width * STRIDE_H - PADDING_H
    first_x = pixel % out_width * STRIDE_W - PADDING_W
    image = x + batch * height * width * CHANNELS
    line = width * CHANNELS
    rows = weight + row.to(tl.int64)[None, :] * (TAPS * CHANNELS)
    total = tl.zeros((PIXELS, ROWS), tl.float32)
    sampled = tl.zeros((PIXELS, BLOCK), x.dtype.element_ty)
    place = tl.zeros((PIXELS,), tl.int64)
    nothing = tl.zeros((PIXELS,), tl.float32)
    shares, exist = (nothing, nothing, nothing, nothing), (inside, inside, inside, inside)
    factor_at = tl.arange(0, BLOCK)
    factor_real = factor_at < OF_GROUP
    for step in range(STEPS + 1):  # the last one only multiplies, the first one adds zeros
        group = tl.minimum(step // (TAPS * BLOCKS), GROUPS - 1)
        tap = step % TAPS if TAPS_INSIDE else step // BLOCKS % TAPS
        block = step // TAPS % BLOCKS if TAPS_INSIDE else step % BLOCKS
        if step % OF_PLACE == 0:
            at = (batch * (GROUPS * TAPS) + group * TAPS + tap) * area
            tap_y, tap_x = first_y + tap // KERNEL_W * DILATION_H, first_x + tap % KERNEL_W * DILATION_W
            there = inside & (step < STEPS)
            place, shares, exist = corners(offset, mask, at, area, pixel, there, tap_y, tap_x, height, width)
        of_group = block * BLOCK + tl.arange(0, BLOCK)
        real = of_group < OF_GROUP
        channel = group * OF_GROUP + of_group
        read = (image + place * CHANNELS)[:, None] + channel[None, :]
        one = tl.load(read, mask=exist[0][:, None] & real[None, :], other=0.0)
        two = tl.load(read + CHANNELS, mask=exist[1][:, None] & real[None, :], other=0.0)
        three = tl.load(read + line, mask=exist[2][:, None] & real[None, :], other=0.0)
        four = tl.load(read + line + CHANNELS, mask=exist[3][:, None] & real[None, :], other=0.0)
        is_factor = factor_real[:, None] & (row < OUT_CHANNELS)[None, :]
        factor = tl.load(rows + factor_at[:, None], mask=is_factor, other=0.0)
        total = tl.dot(sampled, factor, total, input_precision="tf32x3")
        mixed = shares[0][:, None] * one.to(tl.float32)
        mixed += shares[1][:, None] * two.to(tl.float32)
        mixed += shares[2][:, None] * three.to(tl.float32)
        mixed += shares[3][:, None] * four.to(tl.float32)
        sampled = mixed.to(x.dtype.element_ty)
        factor_at, factor_real = tap * CHANNELS + channel, real
    total += tl.load(bias + row, mask=row < OUT_CHANNELS, other=0.0).to(tl.float32)[None, :]
    at = (batch * area + pixel)[:, None] * OUT_CHANNELS + row[None, :]
    tl.store(y + at, total.to(y.dtype.element_ty), mask=inside[:, None] & (row < OUT_CHANNELS)[None, :])
