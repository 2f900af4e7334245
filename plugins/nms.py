"""Non-maximum suppression with a fixed number of outputs: the best box is kept, those that overlap it go, and so on.

boxes hold corners, (x0, y0, x1, y1). Of the candidates whose score is above `score_threshold` the highest is kept, the
first of equals; others whose intersection over union with it is above `iou_threshold` are out. `indices` are those of
the kept boxes in that order, -1 behind the last, and `count` how many there are: what torchvision.ops.nms returns, cut
at `max_outputs`. Any leading axes are items of their own, images and classes. Computed in FP32.

One program an item. Scores and boxes stay in registers, so there is a bound to the candidates, and each step takes a
maximum over all of them, and one IoU each: the steps are as many as boxes are kept, not as there are candidates. So a
score threshold costs nothing and saves nothing but the steps of what it lets through. A number of candidates that
varies is computed as the largest one.

The reference is a loop of `max_outputs` steps, in ONNX a Scan.
"""

import math

import torch
import triton
import triton.language as tl

from aot.plugin import Launch, Size, power_of_two

NAME = "aot::nms"
SCHEMA = """(
    T boxes, S scores, float iou_threshold=0.5, float score_threshold=0.0, int max_outputs=100
) -> (int64 indices, int32 count)"""
TYPES = {"T": "float32 float16 bfloat16", "S": "float32 float16 bfloat16"}
SHAPES = {"boxes": "... candidates 4", "scores": "... candidates"}
SIZES = {"candidates": (1, 16384)}
ATTRIBUTES = {"iou_threshold": [0.1], "score_threshold": [-10.0, 0.5], "max_outputs": [1, 7]}
CASES = [
    {"...": (3,), "candidates": 33},
    {"...": (), "candidates": 7},
    {"...": (0,), "candidates": 5},
    {"...": (2, 3), "candidates": 1},
    {"...": (1,), "candidates": 131},
    {"...": (2,), "candidates": 67},
]
CONFIGS = [{"num_warps": 8}, {"num_warps": 4}, {"num_warps": 16}, {"num_warps": 32}]
NONE = float("-inf")


def reference(boxes, scores, iou_threshold, score_threshold, max_outputs):
    leading, candidates = scores.shape[:-1], scores.shape[-1]
    corners = boxes.float().reshape(-1, candidates, 4)
    score = scores.float().reshape(-1, candidates)
    score = torch.where(score > score_threshold, score, NONE)
    area = (corners[..., 2] - corners[..., 0]) * (corners[..., 3] - corners[..., 1])
    place = torch.arange(candidates, device=boxes.device)

    def step(score, _):
        best = score.amax(-1, keepdim=True)
        index = torch.where(score == best, place, candidates).amin(-1, keepdim=True)
        box = corners.gather(1, index[..., None].expand(-1, -1, 4))
        low, high = torch.maximum(corners, box), torch.minimum(corners, box)
        width = (high[..., 2] - low[..., 0]).clamp(min=0)
        height = (high[..., 3] - low[..., 1]).clamp(min=0)
        shared = width * height
        union = area.gather(1, index) + area - shared
        out = (shared > iou_threshold * union) & (union > 0)
        left = torch.where(out | (place == index), NONE, score)
        return left, torch.where(best > NONE, index, -1)[:, 0]

    if torch.compiler.is_exporting():
        from torch._higher_order_ops.scan import scan

        _, kept = scan(step, score, torch.arange(max_outputs))
    else:
        kept = []
        for _ in range(max_outputs):
            score, index = step(score, None)
            kept.append(index)
        kept = torch.stack(kept)
    indices = kept.t().reshape(*leading, max_outputs)
    return indices, (indices >= 0).sum(-1).to(torch.int32)


def outputs(shapes, attributes):
    leading = shapes.scores[:-1]
    return (*leading, attributes.max_outputs), leading


def launch(shapes, attributes, config):
    candidates = shapes.scores[-1]
    most = SIZES["candidates"][1]
    return Launch(
        grid=(math.prod(shapes.scores[:-1]),),
        scalars={"candidates": candidates},
        constants={
            "BLOCK": most if isinstance(candidates, Size) else power_of_two(candidates),
            "IOU": attributes.iou_threshold,
            "SCORE": attributes.score_threshold,
            "OUTPUTS": attributes.max_outputs,
            "SLOTS": power_of_two(attributes.max_outputs),
        },
    )


def sample(inputs, attributes):
    """Boxes of some width, many of them of one score."""
    boxes = inputs["boxes"]
    boxes[..., 2:] = boxes[..., :2] + boxes[..., 2:].abs()
    inputs["scores"] = (inputs["scores"] * 4).round() / 4
    return inputs


@triton.jit
def kernel(
    boxes,
    scores,
    candidates,
    indices,
    count,
    BLOCK: tl.constexpr,
    IOU: tl.constexpr,
    SCORE: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SLOTS: tl.constexpr,
):
    item = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    inside = place < candidates
    corner = boxes + item * candidates * 4 + place * 4
    x0 = tl.load(corner, mask=inside, other=0.0).to(tl.float32)
    y0 = tl.load(corner + 1, mask=inside, other=0.0).to(tl.float32)
    x1 = tl.load(corner + 2, mask=inside, other=0.0).to(tl.float32)
    y1 = tl.load(corner + 3, mask=inside, other=0.0).to(tl.float32)
    area = (x1 - x0) * (y1 - y0)
    score = tl.load(scores + item * candidates + place, mask=inside, other=0.0).to(tl.float32)
    score = tl.where(inside & (score > SCORE), score, float("-inf"))
    slot = tl.arange(0, SLOTS)
    kept = tl.full([SLOTS], -1, tl.int64)
    found = 0
    best, index = tl.max(score, 0, return_indices=True, return_indices_tie_break_left=True)
    while (found < OUTPUTS) & (best > float("-inf")):
        kept = tl.where(slot == found, index, kept)
        found += 1
        one = boxes + (item * candidates + index) * 4
        left, top = tl.load(one).to(tl.float32), tl.load(one + 1).to(tl.float32)
        right, bottom = tl.load(one + 2).to(tl.float32), tl.load(one + 3).to(tl.float32)
        width = tl.maximum(tl.minimum(x1, right) - tl.maximum(x0, left), 0.0)
        height = tl.maximum(tl.minimum(y1, bottom) - tl.maximum(y0, top), 0.0)
        shared = width * height
        union = (right - left) * (bottom - top) + area - shared
        out = (shared > IOU * union) & (union > 0.0)
        score = tl.where(out | (place == index), float("-inf"), score)
        best, index = tl.max(score, 0, return_indices=True, return_indices_tie_break_left=True)
    tl.store(indices + item * OUTPUTS + slot, kept, mask=slot < OUTPUTS)
    tl.store(count + item, found)
