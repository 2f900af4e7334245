"""Rows reduced by an index in any order: sum, mean, max or min of the edges that meet in a node.

y[n] = reduce of x[e] over all e with index[e] = n, for as many n as `like` has rows; of `like` nothing but its size is
read. A node without edges gives 0, whatever the reduction, as in PyTorch Geometric; NaN is kept. Computed in FP32, each
node's edges in their order, and rounded once: the same input gives the same bits, which atomic additions do not.

A program owns ROWS nodes and looks through the whole index for edges of theirs, CHUNK at a time; it takes them one by
one, so that x is read once. Nobody else writes to its rows: one launch, no zeros to be written before. The index is
read nodes / ROWS times, from the cache. That is quick up to some ten thousand nodes times some ten thousand edges, and
grows with their product; beyond, or where one graph serves several layers, sort the edges once (by index.argsort(), the
pointers by counting) and use segment_reduce, which reads everything once.

The reference is torch.scatter_reduce, in ONNX ScatterElements with a reduction: onnxruntime has it, TensorRT without
this plugin has not, while it has all that segment_reduce needs.
"""

import torch
import triton
import triton.language as tl

from aot.plugin import Launch, ceil_div, fixed, power_of_two

NAME = "aot::scatter_reduce"
SCHEMA = '(T x, I index, T like, str reduce="sum") -> (T y)'
TYPES = {"T": "float32 float16 bfloat16", "I": "int64 int32"}
SHAPES = {"x": "edges width", "index": "edges", "like": "nodes features"}
SIZES = {"edges": (0, 1073741824), "width": (1, 2048), "nodes": (1, None)}
ATTRIBUTES = {"reduce": ["mean", "max", "min"]}
CASES = [
    {"edges": 23, "width": 5, "nodes": 7, "features": 2},
    {"edges": 0, "width": 3, "nodes": 4, "features": 0},
    {"edges": 1, "width": 1, "nodes": 1, "features": 1},
    {"edges": 131, "width": 16, "nodes": 67, "features": 1},
    {"edges": 67, "width": 131, "nodes": 19, "features": 3},
]
CONFIGS = [
    {"rows": 16, "chunk": 1024, "num_warps": 4},
    {"rows": 4, "chunk": 1024, "num_warps": 2},
    {"rows": 8, "chunk": 512, "num_warps": 1},
    {"rows": 32, "chunk": 1024, "num_warps": 8},
    {"rows": 16, "chunk": 2048, "num_warps": 4},
]


def reference(x, index, like, reduce):
    name = {"max": "amax", "min": "amin"}.get(reduce, reduce)
    wide = x.float()
    empty = torch.zeros((1, 1), device=x.device).expand(like.shape[0], x.shape[1])
    at = index.long()[:, None].expand(-1, x.shape[1])
    return empty.scatter_reduce(0, at, wide, name, include_self=False).to(x.dtype)


def outputs(shapes, attributes):
    return ((shapes.like[0], shapes.x[1]),)


def launch(shapes, attributes, config):
    edges, width = shapes.x
    nodes = shapes.like[0]
    return Launch(
        grid=(ceil_div(nodes, config["rows"]),),
        scalars={"edges": edges, "nodes": nodes},
        constants={
            "WIDTH": fixed(width, "the number of features"),
            "REDUCE": attributes.reduce,
            "NEUTRAL": {"max": float("-inf"), "min": float("inf")}.get(attributes.reduce, 0.0),
            "ROWS": config["rows"],
            "CHUNK": config["chunk"],
            "BLOCK": power_of_two(width),
        },
    )


def sample(inputs, attributes):
    """An index into the nodes there are."""
    inputs["index"] = inputs["index"] * 7 % inputs["like"].shape[0]
    return inputs


@triton.jit
def kernel(
    x,
    index,
    like,
    edges,
    nodes,
    y,
    WIDTH: tl.constexpr,
    REDUCE: tl.constexpr,
    NEUTRAL: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64) * ROWS
    row = tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    place = tl.arange(0, CHUNK)
    total = tl.full([ROWS, BLOCK], NEUTRAL, tl.float32)
    count = tl.zeros([ROWS], tl.int32)
    ahead = tl.load(index + place, mask=place < edges, other=-1)
    for start in range(0, edges, CHUNK):
        target = ahead - first
        # The next of the index is on its way while this is looked through.
        ahead = tl.load(index + start + CHUNK + place, mask=place < edges - start - CHUNK, other=-1)
        # Place and row of an edge that is ours as one number; what is not ours comes after them all.
        key = tl.where((target >= 0) & (target < ROWS), place * ROWS + target.to(tl.int32), CHUNK * ROWS)
        found = tl.min(key, 0)
        while found < CHUNK * ROWS:
            edge = start + (found // ROWS).to(tl.int64)
            value = tl.load(x + edge * WIDTH + column, mask=column < WIDTH, other=0.0).to(tl.float32)
            meets = row == found % ROWS
            if REDUCE == "max":
                reduced = tl.maximum(total, value[None, :], propagate_nan=tl.PropagateNan.ALL)
            elif REDUCE == "min":
                reduced = tl.minimum(total, value[None, :], propagate_nan=tl.PropagateNan.ALL)
            else:
                reduced = total + value[None, :]
            total = tl.where(meets[:, None], reduced, total)
            count += meets.to(tl.int32)
            key = tl.where(key == found, CHUNK * ROWS, key)
            found = tl.min(key, 0)
    if REDUCE == "mean":
        total = tl.div_rn(total, tl.maximum(count, 1).to(tl.float32)[:, None] + tl.zeros_like(total))
    total = tl.where(count[:, None] > 0, total, 0.0)
    at = (first + row)[:, None] * WIDTH + column[None, :]
    tl.store(y + at, total.to(y.dtype.element_ty), mask=(first + row < nodes)[:, None] & (column < WIDTH)[None, :])
