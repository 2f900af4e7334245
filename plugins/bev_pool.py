"""Bird's-eye-view pooling (BEVDet's bev_pool_v2, Huang and Huang 2022, arXiv:2211.17111; BEVFusion, arXiv:2205.13542).

y[cell] = sum over the points of the cell of depth[ranks_depth[point]] · features[ranks_features[point]]. The points of
cell i are those from starts[i] up to starts[i + 1]: every cell has a range, an empty one too, so that all of y is
written. Summed in FP32 and rounded once at the end.

The ranks and starts follow from the geometry of the cameras alone, and are constants where those are fixed. With `cell`
the cell that each bin of depth [cameras, bins, rows, columns] falls into, -1 where that is outside:

    order = cell.flatten().argsort(stable=True)
    ranks_depth = order[cell.flatten()[order] >= 0].int()
    pixels = rows * columns
    ranks_features = ranks_depth // (bins * pixels) * pixels + ranks_depth % pixels
    starts = torch.searchsorted(cell.flatten()[ranks_depth], torch.arange(cells + 1), out_int32=True)

for depth.flatten(1) and features [batch, cameras · rows · columns, channels]. Where the geometry differs from sample to
sample, number the cells of all samples and pass one batch. A program takes one cell and several of its points at once.
"""

import torch
import triton
import triton.language as tl

from aot.plugin import Launch, ceil_div, power_of_two

NAME = "aot::bev_pool"
SCHEMA = "(T depth, T features, int32 ranks_depth, int32 ranks_features, int32 starts) -> (T y)"
TYPES = {"T": "float32 float16 bfloat16"}
SHAPES = {
    "depth": "batch bins",
    "features": "batch pixels channels",
    "ranks_depth": "points",
    "ranks_features": "points",
    "starts": "cells_and_1",
}
SIZES = {"bins": (1, None), "pixels": (1, None), "channels": (1, 4096), "cells_and_1": (1, None)}
CASES = [
    {"batch": 2, "bins": 35, "pixels": 7, "channels": 9, "points": 131, "cells_and_1": 14},
    {"batch": 1, "bins": 67, "pixels": 131, "channels": 67, "points": 300, "cells_and_1": 6},
    {"batch": 1, "bins": 67, "pixels": 5, "channels": 5, "points": 13, "cells_and_1": 68},
    {"batch": 1, "bins": 1, "pixels": 1, "channels": 1, "points": 1, "cells_and_1": 2},
    {"batch": 0, "bins": 3, "pixels": 3, "channels": 3, "points": 3, "cells_and_1": 4},
    {"batch": 1, "bins": 3, "pixels": 3, "channels": 3, "points": 0, "cells_and_1": 4},
    {"batch": 1, "bins": 3, "pixels": 3, "channels": 3, "points": 3, "cells_and_1": 1},
    {"batch": 3, "bins": 35, "pixels": 11, "channels": 131, "points": 64, "cells_and_1": 8},
]
CONFIGS = [
    {"points": 8, "channels": 128, "num_warps": 1},
    {"points": 4, "channels": 128, "num_warps": 1},
    {"points": 16, "channels": 128, "num_warps": 2},
    {"points": 16, "channels": 32, "num_warps": 1},
    {"points": 32, "channels": 128, "num_warps": 4},
    {"points": 8, "channels": 256, "num_warps": 2},
]
SPACE = {"points": [2, 4, 8, 16, 32], "channels": [32, 64, 128, 256], "num_warps": [1, 2, 4]}


def reference(depth, features, ranks_depth, ranks_features, starts):
    """Sums of sixteen points, of sixteen of those and so on, of which each cell takes those that its range is made of.

    A scatter that adds would be shorter, but TensorRT has none; the difference of two running sums would cancel.
    """
    batch, points, channels = depth.shape[0], ranks_depth.shape[0], features.shape[2]
    cells = starts.shape[0] - 1
    sums = depth.float().index_select(1, ranks_depth)[..., None] * features.float().index_select(1, ranks_features)
    left, right = starts[:-1].long(), starts[1:].long()
    step = torch.arange(15, device=depth.device)
    total = torch.zeros(batch, cells, channels, device=depth.device)
    bits = points.bit_length() if isinstance(points, int) else 31
    for _ in range(-(-bits // 4)):
        count = sums.shape[1]
        sums = torch.nn.functional.pad(sums, (0, 0, 0, 16))  # zeros, for what is not taken and to fill up a sixteen
        inner = torch.minimum((left + 15) // 16 * 16, right)
        outer = torch.maximum(right // 16 * 16, inner)
        for start, end in ((left, inner), (outer, right)):
            index = start[:, None] + step
            index = torch.where(index < end[:, None], index, count)
            total = total + sums.index_select(1, index.flatten()).reshape(batch, cells, 15, channels).sum(2)
        left, right = inner // 16, outer // 16
        groups = (count + 15) // 16
        sums = sums[:, : 16 * groups].reshape(batch, groups, 16, channels).sum(2)
    return total.to(features.dtype)


def outputs(shapes, attributes):
    return ((shapes.depth[0], shapes.starts[0] - 1, shapes.features[2]),)


def launch(shapes, attributes, config):
    batch, pixels, channels = shapes.features
    block = min(config["channels"], power_of_two(channels, "the number of channels"))
    return Launch(
        grid=(shapes.starts[0] - 1, ceil_div(channels, block), batch),
        scalars={"bins": shapes.depth[1], "pixels": pixels},
        constants={"CHANNELS": channels, "POINTS": config["points"], "BLOCK": block},
    )


def sample(inputs, attributes):
    bins, pixels = inputs["depth"].shape[1], inputs["features"].shape[1]
    points, ends = len(inputs["ranks_depth"]), len(inputs["starts"])
    inputs["ranks_depth"] = torch.randint(0, bins, (points,))
    inputs["ranks_features"] = torch.randint(0, pixels, (points,))
    inputs["starts"] = torch.randint(0, points + 1, (ends,)).sort().values
    return inputs


@triton.jit
def kernel(
    depth,
    features,
    ranks_depth,
    ranks_features,
    starts,
    bins,
    pixels,
    y,
    CHANNELS: tl.constexpr,
    POINTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    cell = tl.program_id(0)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    batch = tl.program_id(2).to(tl.int64)
    real = channel < CHANNELS
    last = tl.load(starts + cell + 1)
    total = tl.zeros((POINTS, BLOCK), tl.float32)
    for first in range(tl.load(starts + cell), last, POINTS):
        point = first + tl.arange(0, POINTS)
        inside = point < last
        bin_ = tl.load(ranks_depth + point, mask=inside, other=0)
        pixel = tl.load(ranks_features + point, mask=inside, other=0)
        share = tl.load(depth + batch * bins + bin_, mask=inside, other=0.0).to(tl.float32)
        at = (batch * pixels + pixel)[:, None] * CHANNELS + channel[None, :]
        feature = tl.load(features + at, mask=inside[:, None] & real[None, :], other=0.0)
        total += share[:, None] * feature.to(tl.float32)
    at = (batch * (tl.num_programs(0)) + cell) * CHANNELS + channel
    tl.store(y + at, tl.sum(total, axis=0).to(y.dtype.element_ty), mask=real)
