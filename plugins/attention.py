"""Attention of several heads without the matrix of scores in memory (FlashAttention, arXiv:2205.14135, 2307.08691).

y = softmax(q kᵀ · scale + mask) v, for each head. Inputs stay as linear layers leave them, a position's heads side by
side, so that nothing is transposed: the size of a head is q's width / heads, and k and v may have fewer heads, each for
a group of q's (GQA, arXiv:2305.13245). scale 0 stands for 1 / √head.

`mask` is added to the scores of a key. A key whose mask is below -9000 is left out, so that -10000, the lowest number
and -inf all tell padding, in any dtype; without padding it is zeros, which cost nothing. Where `causal`, the last query
sees every key and each one before it one fewer, so that keys of a cache may come first. A query that sees no key gives
0.

A program takes a block of queries of one head and runs over the keys: the largest score m and the sum of weights of
each query are kept as they are found, and what was added up before is rescaled whenever m grows. Scores are in units of
log 2, for exp2 is what the hardware has. Products are of the inputs' dtype, sums and weights in FP32; the weights are
rounded for the second product. Whole blocks of keys that every query sees with a mask of 0 come first, and the mask is
not looked at; what lies behind the last key that is not left out is not read. A block has half as many `keys` in FP32,
and where a head is larger than 128, so that it fits into shared memory.
"""

import math

import torch
import triton
import triton.language as tl

from aot.errors import PluginError
from aot.plugin import Launch, ceil_div, fixed, power_of_two

NAME = "aot::attention"
SCHEMA = "(T q, T k, T v, T mask, int heads, bool causal=False, float scale=0.0) -> (T y)"
TYPES = {"T": "float32 float16 bfloat16"}
SHAPES = {"q": "batch queries width", "k": "batch keys kv_width", "v": "batch keys kv_width", "mask": "batch keys"}
SIZES = {"width": (1, None), "kv_width": (1, None)}
ATTRIBUTES = {"heads": [4]}
CASES = [
    {"batch": 2, "queries": 5, "keys": 7, "width": 32, "kv_width": 16, "heads": 4, "causal": True},
    {"batch": 3, "queries": 131, "keys": 67, "width": 32, "kv_width": 32, "heads": 2},
    {"batch": 1, "queries": 67, "keys": 131, "width": 24, "kv_width": 8, "heads": 3, "causal": True},
    {"batch": 2, "queries": 131, "keys": 67, "width": 80, "kv_width": 80, "heads": 1, "causal": True, "scale": 0.25},
    {"batch": 2, "queries": 1, "keys": 129, "width": 32, "kv_width": 16, "heads": 4, "causal": True},
    {"batch": 1, "queries": 3, "keys": 1, "width": 1, "kv_width": 1, "heads": 1},
    {"batch": 0, "queries": 3, "keys": 4, "width": 8, "kv_width": 8, "heads": 1},
    {"batch": 2, "queries": 0, "keys": 4, "width": 8, "kv_width": 8, "heads": 1},
    {"batch": 2, "queries": 3, "keys": 0, "width": 8, "kv_width": 8, "heads": 1},
    {"batch": 2, "queries": 67, "keys": 200, "width": 32, "kv_width": 16, "heads": 4},
]
CONFIGS = [
    {"queries": 128, "keys": 64, "num_warps": 8, "num_stages": 3},
    {"queries": 128, "keys": 128, "num_warps": 8, "num_stages": 2},
    {"queries": 64, "keys": 64, "num_warps": 4, "num_stages": 3},
    {"queries": 64, "keys": 128, "num_warps": 4, "num_stages": 2},
    {"queries": 128, "keys": 64, "num_warps": 4, "num_stages": 3},
    {"queries": 64, "keys": 32, "num_warps": 4, "num_stages": 2},
    {"queries": 16, "keys": 64, "num_warps": 4, "num_stages": 3},
]
SPACE = {"queries": [16, 32, 64, 128], "keys": [32, 64, 128], "num_warps": [4, 8], "num_stages": [2, 3, 4]}
LEFT_OUT = tl.constexpr(-9000.0)
LOG2_E = tl.constexpr(1.4426950408889634)


def reference(q, k, v, mask, heads, causal, scale):
    dtype, head = q.dtype, q.shape[-1] // heads
    group = q.shape[-1] // k.shape[-1]
    q, k, v = (x.float().unflatten(-1, (-1, head)).transpose(1, 2) for x in (q, k, v))
    if group > 1:
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    added = mask.float()[:, None, None, :]
    seen = added > LEFT_OUT.value
    if causal:
        first, last = torch.arange(k.shape[2], device=q.device), torch.arange(q.shape[2], device=q.device)
        seen = seen & (first[None, :] <= last[:, None] + (k.shape[2] - q.shape[2]))
    scores = q @ k.transpose(2, 3) * (scale or head**-0.5) + added
    weights = torch.softmax(torch.where(seen, scores, -math.inf), -1)
    return (torch.where(seen, weights, 0.0) @ v).transpose(1, 2).flatten(2).to(dtype)


def outputs(shapes, attributes):
    _head(shapes, attributes)
    return (shapes.q,)


def _head(shapes, attributes):
    """The size of a head. Raises PluginError where the widths are not those of whole heads."""
    width, kv_width = fixed(shapes.q[-1], "the width of q"), fixed(shapes.k[-1], "the width of k and v")
    heads = attributes.heads
    if attributes.scale < 0.0:
        raise PluginError(f"scale is {attributes.scale}, and may be positive, or 0 for 1 / sqrt(head)")
    if heads < 1 or width % heads or kv_width % (width // heads) or width % kv_width:
        raise PluginError(
            f"q is {width} wide, k and v are {kv_width}: that is not {heads} heads and a divisor of that",
            fix="heads is how many q has; k and v have as many, or one for each group of them",
        )
    return width // heads


def launch(shapes, attributes, config):
    batch, queries, width = shapes.q
    head = _head(shapes, attributes)
    block = max(power_of_two(head), 16)
    return Launch(
        grid=(ceil_div(queries, config["queries"]) * attributes.heads * batch,),
        scalars={"queries": queries, "keys": shapes.k[1]},
        constants={
            "WIDTH": width,
            "KV_WIDTH": shapes.k[-1],
            "HEAD": head,
            "SCALE": attributes.scale or head**-0.5,
            "CAUSAL": attributes.causal,
            "QUERIES": config["queries"],
            "KEYS": max(config["keys"] * 128 // max(block, 128), 32),
            "BLOCK": block,
        },
    )


def sample(inputs, attributes):
    """No mask in half of the first sequence; some keys left out, in the last sequence of several all of them."""
    inputs["mask"][:, ::3] = -10000.0
    inputs["mask"][:1, : inputs["mask"].shape[1] // 2] = 0.0
    inputs["mask"][1:][-1:] = -math.inf
    return inputs


@triton.jit
def _told(mask, keys):
    """(how many keys from the first on have a mask of 0, how many there are up to the last that is not left out)."""
    plain, used = keys, 0
    place = tl.arange(0, 1024)
    for start in range(0, keys, 1024):
        added = tl.load(mask + start + place, mask=place < keys - start, other=float("-inf")).to(tl.float32)
        plain = tl.minimum(plain, tl.min(tl.where(added == 0.0, keys, start + place)))
        used = tl.maximum(used, tl.max(tl.where(added > LEFT_OUT, start + place + 1, 0)))
    return plain, used


@triton.jit
def _rows(
    x, left, WIDTH: tl.constexpr, HEAD: tl.constexpr, WHOLE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The elements of one head in a block of rows, of which there are ROWS where WHOLE, else `left`; 0 beyond."""
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK)[None, :]
    if WHOLE and HEAD == BLOCK:
        block = tl.load(x + row * WIDTH + column)
    elif WHOLE:
        block = tl.load(x + row * WIDTH + column, mask=column < HEAD, other=0.0)
    else:
        block = tl.load(x + row * WIDTH + column, mask=(row < left) & (column < HEAD), other=0.0)
    return block


@triton.jit
def _attend(
    q, k, v, mask, total, weight, most, begin, end, keys, ahead,
    KV_WIDTH: tl.constexpr, HEAD: tl.constexpr, SCALE: tl.constexpr, PLAIN: tl.constexpr, CAUSAL: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add the values of keys begin to end; k, v and mask point to the first. PLAIN: in whole blocks, every query sees
    them, and their mask is 0. A query sees `ahead` past its row where CAUSAL."""
    row = tl.arange(0, KEYS)
    for start in range(begin, end, KEYS):
        key = _rows(k, keys - start, KV_WIDTH, HEAD, PLAIN, KEYS, BLOCK)
        score = tl.dot(q, tl.trans(key), input_precision="ieee")
        if PLAIN:
            now = tl.maximum(most, tl.max(score, 1) * SCALE)
            level = now
            share = tl.exp2(score * SCALE - level[:, None])
        else:
            added = tl.load(mask + row, mask=row < keys - start, other=float("-inf")).to(tl.float32)
            score = score * SCALE + tl.where(added > LEFT_OUT, added * LOG2_E, float("-inf"))[None, :]
            if CAUSAL:
                seen = start + row[None, :] <= tl.arange(0, QUERIES)[:, None] + ahead
                score = tl.where(seen, score, float("-inf"))
            now = tl.maximum(most, tl.max(score, 1))
            # Where every score so far is -inf, any finite number does: the weights are 0.
            level = tl.where(now == float("-inf"), 0.0, now)
            share = tl.exp2(score - level[:, None])
        faded = tl.exp2(most - level)
        weight = weight * faded + tl.sum(share, 1)
        value = _rows(v, keys - start, KV_WIDTH, HEAD, PLAIN, KEYS, BLOCK)
        total = tl.dot(share.to(v.dtype.element_ty), value, total * faded[:, None], input_precision="ieee")
        most = now
        k += KEYS * KV_WIDTH
        v += KEYS * KV_WIDTH
        mask += KEYS
    return total, weight, most


@triton.jit
def kernel(
    q,
    k,
    v,
    mask,
    queries,
    keys,
    y,
    WIDTH: tl.constexpr,
    KV_WIDTH: tl.constexpr,
    HEAD: tl.constexpr,
    SCALE: tl.constexpr,
    CAUSAL: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    SPAN: tl.constexpr = KEYS * 16 // k.dtype.element_ty.primitive_bitwidth
    blocks = tl.cdiv(queries, QUERIES)
    block = tl.program_id(0) % blocks
    head = (tl.program_id(0) // blocks) % (WIDTH // HEAD)
    batch = (tl.program_id(0) // blocks // (WIDTH // HEAD)).to(tl.int64)
    if CAUSAL:
        block = blocks - 1 - block  # those with most keys start first
    first = block * QUERIES
    row, column = tl.arange(0, QUERIES), tl.arange(0, BLOCK)
    start = (batch * queries + first) * WIDTH + head * HEAD
    at = row[:, None] * WIDTH + column[None, :]
    inside = (row[:, None] < queries - first) & (column[None, :] < HEAD)
    query = _rows(q + start, queries - first, WIDTH, HEAD, False, QUERIES, BLOCK)
    kv_start = batch * keys * KV_WIDTH + head // (WIDTH // KV_WIDTH) * HEAD
    k += kv_start
    v += kv_start
    mask += batch * keys
    total = tl.zeros((QUERIES, BLOCK), tl.float32)
    weight = tl.zeros((QUERIES,), tl.float32)
    most = tl.full((QUERIES,), float("-inf"), tl.float32)
    plain, used = _told(mask, keys)
    ahead = first + keys - queries  # the last key that the block's first query sees
    if CAUSAL:
        plain = tl.minimum(plain, tl.maximum(ahead + 1, 0))
        used = tl.minimum(used, ahead + QUERIES)
    plain = plain // SPAN * SPAN
    total, weight, most = _attend(
        query, k, v, mask, total, weight, most,
        0, plain, keys, ahead, KV_WIDTH, HEAD, SCALE * LOG2_E, True, CAUSAL, QUERIES, SPAN, BLOCK,
    )  # fmt: skip
    moved = plain.to(tl.int64) * KV_WIDTH
    total, weight, most = _attend(
        query, k + moved, v + moved, mask + plain, total, weight, most,
        plain, used, keys, ahead, KV_WIDTH, HEAD, SCALE * LOG2_E, False, CAUSAL, QUERIES, SPAN, BLOCK,
    )  # fmt: skip
    total /= tl.where(weight == 0.0, 1.0, weight)[:, None]
    tl.store(y + start + at, total.to(y.dtype.element_ty), mask=inside)
