"""Rows reduced by segments: sum, mean, max or min of neighbouring rows, as graph networks aggregate sorted edges.

y[s] = reduce(x[pointers[s]], ..., x[pointers[s + 1] - 1]), where pointers rise from 0 to the number of edges (the row
pointers of a CSR matrix). There are as many segments as pointers, less one. An empty segment gives 0, whatever the
reduction, as in PyTorch Geometric; NaN is kept. Computed in FP32, in an order that depends on the segment alone, and
rounded once: the same input gives the same bits. Edges that come in any order: see scatter_reduce.

A program takes SEGMENTS segments and FEATURES columns of them, CHUNK edges a step; it goes on until the longest of its
segments is through, while nothing is loaded for the shorter ones. Each x is read once, which is all that it costs where
segments are alike. One segment is one program's, so a node with a million edges takes as long as a program takes for
them; rows that many edges meet in are better split first, and the parts reduced again.

The reference builds sums (or maxima) of 1, 2, 4, ... rows from each row on, and puts every segment together from those
of its length's binary digits. So it needs no scatter with a reduction, which TensorRT lacks.
"""

import torch
import triton
import triton.language as tl

from aot.plugin import Launch, ceil_div, fixed, power_of_two

NAME = "aot::segment_reduce"
SCHEMA = '(T x, I pointers, str reduce="sum") -> (T y)'
TYPES = {"T": "float32 float16 bfloat16", "I": "int64 int32"}
SHAPES = {"x": "edges width", "pointers": "bounds"}
SIZES = {"edges": (0, 16777215), "width": (1, 65536), "bounds": (1, None)}
ATTRIBUTES = {"reduce": ["mean", "max", "min"]}
CASES = [
    {"edges": 23, "width": 5, "bounds": 8},
    {"edges": 0, "width": 3, "bounds": 4},
    {"edges": 5, "width": 1, "bounds": 1},
    {"edges": 131, "width": 7, "bounds": 2},
    {"edges": 9, "width": 16, "bounds": 67},
    {"edges": 67, "width": 131, "bounds": 10},
]
CONFIGS = [
    {"segments": 4, "chunk": 4, "features": 128, "num_warps": 4},
    {"segments": 8, "chunk": 4, "features": 64, "num_warps": 4},
    {"segments": 1, "chunk": 8, "features": 128, "num_warps": 1},
    {"segments": 2, "chunk": 8, "features": 128, "num_warps": 4},
    {"segments": 16, "chunk": 2, "features": 64, "num_warps": 4},
    {"segments": 1, "chunk": 32, "features": 128, "num_warps": 4},
    {"segments": 1, "chunk": 64, "features": 64, "num_warps": 8},
]
DIGITS = 24
"""Of a number of edges, at most."""


def reference(x, pointers, reduce):
    combine = {"max": torch.maximum, "min": torch.minimum}.get(reduce, torch.add)
    edges = x.shape[0]
    begin, length = pointers[:-1].long(), pointers.diff().long()
    # One row more, so that a segment of no edges at the end has a row to name.
    spans = torch.nn.functional.pad(x.float(), (0, 0, 0, 1))
    row = torch.arange(edges + 1, device=x.device)
    y = torch.full((1, 1), {"max": float("-inf"), "min": float("inf")}.get(reduce, 0.0), device=x.device)
    y = y.expand(begin.shape[0], x.shape[1])
    for digit in range(edges.bit_length() if isinstance(edges, int) else DIGITS):
        size = 1 << digit
        taken = length // size % 2 == 1
        y = torch.where(taken[:, None], combine(y, spans.index_select(0, begin)), y)
        begin = begin + taken * size
        spans = combine(spans, spans.index_select(0, (row + size).clamp(max=edges)))
    if reduce == "mean":
        y = y / length.clamp(min=1)[:, None]
    return torch.where(length[:, None] > 0, y, 0.0).to(x.dtype)


def outputs(shapes, attributes):
    return ((shapes.pointers[0] - 1, shapes.x[1]),)


def launch(shapes, attributes, config):
    segments = shapes.pointers[0] - 1
    width = fixed(shapes.x[1], "the number of features")
    features = min(config["features"], power_of_two(width))
    return Launch(
        grid=(ceil_div(segments, config["segments"]), ceil_div(width, features)),
        scalars={"segments": segments},
        constants={
            "WIDTH": width,
            "REDUCE": attributes.reduce,
            "NEUTRAL": {"max": float("-inf"), "min": float("inf")}.get(attributes.reduce, 0.0),
            "SEGMENTS": config["segments"],
            "CHUNK": config["chunk"],
            "FEATURES": features,
        },
    )


def sample(inputs, attributes):
    """Pointers that rise from 0 to the number of edges; some segments are empty."""
    edges = inputs["x"].shape[0]
    pointers = (inputs["pointers"] * (edges + 1) // 8).sort().values
    pointers[0], pointers[-1] = 0, edges
    inputs["pointers"] = pointers
    return inputs


@triton.jit
def kernel(
    x,
    pointers,
    segments,
    y,
    WIDTH: tl.constexpr,
    REDUCE: tl.constexpr,
    NEUTRAL: tl.constexpr,
    SEGMENTS: tl.constexpr,
    CHUNK: tl.constexpr,
    FEATURES: tl.constexpr,
):
    segment = tl.program_id(0).to(tl.int64) * SEGMENTS + tl.arange(0, SEGMENTS)
    column = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    ours = segment < segments
    begin = tl.load(pointers + segment, mask=ours, other=0).to(tl.int64)
    end = tl.load(pointers + segment + 1, mask=ours, other=0).to(tl.int64)
    longest = tl.max(end - begin, 0).to(tl.int32)
    total = tl.full([SEGMENTS, CHUNK, FEATURES], NEUTRAL, tl.float32)
    for step in range(0, longest, CHUNK):
        edge = begin[:, None] + step + tl.arange(0, CHUNK)[None, :]
        inside = (edge < end[:, None])[:, :, None] & (column < WIDTH)[None, None, :]
        value = tl.load(x + edge[:, :, None] * WIDTH + column[None, None, :], mask=inside, other=NEUTRAL)
        if REDUCE == "max":
            total = tl.maximum(total, value.to(tl.float32), propagate_nan=tl.PropagateNan.ALL)
        elif REDUCE == "min":
            total = tl.minimum(total, value.to(tl.float32), propagate_nan=tl.PropagateNan.ALL)
        else:
            total += value.to(tl.float32)
    if REDUCE == "max":
        found = tl.max(total, 1)
    elif REDUCE == "min":
        found = tl.min(total, 1)
    else:
        found = tl.sum(total, 1)
    # These two pass NaN over.
    found = tl.where(tl.sum((total != total).to(tl.int32), 1) > 0, float("nan"), found)
    length = (end - begin)[:, None]
    if REDUCE == "mean":
        found = tl.div_rn(found, tl.maximum(length, 1).to(tl.float32) + tl.zeros_like(found))
    found = tl.where(length > 0, found, 0.0)
    at = segment[:, None] * WIDTH + column[None, :]
    tl.store(y + at, found.to(y.dtype.element_ty), mask=ours[:, None] & (column < WIDTH)[None, :])
