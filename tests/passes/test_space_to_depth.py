"""Pixels and channels: against torch's own shuffles, and onnxruntime on the graph before."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aot.passes.space_to_depth import depth_to_space, patch_merging
from tests.passes.test_limits import ops, parse, refused, run_by_onnxruntime

OFFSETS = "int64[1] o = {0}, int64[1] i = {1}, int64[1] e = {9}, int64[1] s = {2}, int64[1] h = {1}, int64[1] w = {2}"
QUARTERS = """a = Slice(x, o, e, h, s)  b = Slice(x, i, e, h, s)  c = Slice(a, o, e, w, s)  d = Slice(b, o, e, w, s)
  f = Slice(a, i, e, w, s)  g = Slice(b, i, e, w, s)"""


@pytest.mark.parametrize("order", ["c, d, f, g", "c, f, d, g"], ids=["Swin's", "rows first"])
def test_patches_are_merged_by_views(order: str) -> None:
    model = parse(
        f"(float[B,4,6,3] x) => (float[B,2,3,12] y) <{OFFSETS}> {{ {QUARTERS}  y = Concat<axis = -1>({order}) }}"
    )
    x = np.arange(2 * 72, dtype=np.float32).reshape(2, 4, 6, 3)
    expected = run_by_onnxruntime(model, x=x)
    assert patch_merging(model) == 1
    assert ops(model) == {"Reshape": 2, "Transpose": 1}
    np.testing.assert_array_equal(run_by_onnxruntime(model, x=x), expected)


def test_the_focus_of_a_detector_has_its_channels_in_front() -> None:
    """x[..., ::2, ::2] and its three shifted neighbours, each one Slice over both axes."""
    model = parse("""(float[B,3,4,6] x) => (float[B,12,2,3] y)
    <int64[2] oo = {0, 0}, int64[2] io = {1, 0}, int64[2] oi = {0, 1}, int64[2] ii = {1, 1}, int64[2] e = {99, 99},
     int64[2] a = {2, 3}, int64[2] s = {2, 2}>
    { p = Slice(x, oo, e, a, s)  q = Slice(x, io, e, a, s)  r = Slice(x, oi, e, a, s)  t = Slice(x, ii, e, a, s)
      y = Concat<axis = 1>(p, q, r, t) }""")
    x = np.arange(2 * 72, dtype=np.float32).reshape(2, 3, 4, 6)
    expected = run_by_onnxruntime(model, x=x)
    assert patch_merging(model) == 1
    assert ops(model) == {"Reshape": 2, "Transpose": 1}
    np.testing.assert_array_equal(run_by_onnxruntime(model, x=x), expected)


@pytest.mark.parametrize(
    ("shape", "order"), [("B,5,6,3", "c, d, f, g"), ("B,4,6,3", "c, g, d, f"), ("B,4,S,3", "c, d, f, g")]
)
def test_odd_sizes_other_orders_and_unknown_sizes_stay(shape: str, order: str) -> None:
    model = parse(
        f"(float[{shape}] x) => (float[N,P,Q,C] y) <{OFFSETS}> {{ {QUARTERS}  y = Concat<axis = -1>({order}) }}"
    )
    assert patch_merging(model) == 0


def views(apart: str, order: str, joined: str, shape: str) -> str:
    return f"""(float[{shape}] x) => (float[N,P,Q,R] y) <int64[6] apart = {{{apart}}}, int64[4] joined = {{{joined}}}>
    {{ r = Reshape(x, apart)  t = Transpose<perm = [{order}]>(r)  y = Reshape(t, joined) }}"""


def test_a_pixel_shuffle_is_one_node() -> None:
    model = parse(views("-1, 2, 3, 3, 4, 5", "0, 1, 4, 2, 5, 3", "-1, 2, 12, 15", "B,18,4,5"))
    x = np.random.default_rng(0).normal(size=(2, 18, 4, 5)).astype(np.float32)
    assert depth_to_space(model) == 1
    assert ops(model) == {"DepthToSpace": 1}
    expected = torch.nn.functional.pixel_shuffle(torch.from_numpy(x), 3).numpy()
    np.testing.assert_array_equal(run_by_onnxruntime(model, x=x), expected)


@pytest.mark.parametrize(
    ("text", "op"),
    [
        (views("-1, 3, 3, 2, 4, 5", "0, 3, 4, 1, 5, 2", "-1, 2, 12, 15", "B,18,4,5"), "DepthToSpace"),
        (views("-1, 2, 4, 3, 5, 3", "0, 3, 5, 1, 2, 4", "-1, 18, 4, 5", "B,2,12,15"), "SpaceToDepth"),
    ],
)
def test_blocks_in_front_of_the_channels_are_one_node(text: str, op: str) -> None:
    model = parse(text)
    x = (
        np.random.default_rng(0)
        .normal(size=(2, *((18, 4, 5) if op == "DepthToSpace" else (2, 12, 15))))
        .astype(np.float32)
    )
    expected = run_by_onnxruntime(model, x=x)
    assert depth_to_space(model) == 1
    assert ops(model) == {op: 1}
    np.testing.assert_array_equal(run_by_onnxruntime(model, x=x), expected)


def test_torchs_unshuffle_has_another_order_and_stays() -> None:
    assert refused(depth_to_space, views("-1, 2, 4, 3, 5, 3", "0, 1, 3, 5, 2, 4", "-1, 18, 4, 5", "B,2,12,15")) == []
