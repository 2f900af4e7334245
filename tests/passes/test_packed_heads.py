"""Packed queries, keys and values: the nodes left, with the numbers of onnxruntime on the graph before."""

from __future__ import annotations

import numpy as np
import pytest

from aot.passes.packed_heads import packed_picks, split_heads
from aot.passes.view_chains import view_chains
from tests.passes.test_limits import ops, parse, refused, run_by_onnxruntime

ATTENTION = """s = Transpose<perm = [0, 1, 3, 2]>(k)  w = MatMul(q, s)  p = Softmax(w)  y = MatMul(p, v) }"""
# [B, S, 3, H, D] to [3, B, H, S, D], and the three picked in the ways that exporters have.
APART = "r = Reshape(x, apart)  t = Transpose<perm = [2, 0, 3, 1, 4]>(r)"
PICKS = {
    "gather": "q = Gather(t, i0)  k = Gather(t, i1)  v = Gather(t, i2)",
    "slice": """qs = Slice(t, z0, z1, z0)  ks = Slice(t, z1, z2, z0)  vs = Slice(t, z2, z3, z0)
        q = Squeeze(qs, z0)  k = Squeeze(ks, z0)  v = Squeeze(vs, z0)""",
    "split": """qs, ks, vs = Split<axis = 0, num_outputs = 3>(t)
        q = Squeeze(qs, z0)  k = Squeeze(ks, z0)  v = Squeeze(vs, z0)""",
}
NUMBERS = """int64 i0 = {0}, int64 i1 = {1}, int64 i2 = {2}, int64[1] z0 = {0}, int64[1] z1 = {1}, int64[1] z2 = {2},
 int64[1] z3 = {3}"""


@pytest.mark.parametrize("how", PICKS)
def test_what_is_picked_from_the_front_is_a_split_of_the_heads(how: str) -> None:
    model = parse(
        f"""(float[B,S,24] x) => (float[B,H,S,4] y) <int64[5] apart = {{0, 0, 3, 2, 4}}, {NUMBERS}>
        {{ {APART}  {PICKS[how]}  {ATTENTION}"""
    )
    x = np.random.default_rng(0).normal(size=(2, 5, 24)).astype(np.float32)
    expected = run_by_onnxruntime(model, x=x)
    assert packed_picks(model) == 1
    assert ops(model) == {"Reshape": 1, "Transpose": 2, "Split": 1, "MatMul": 2, "Softmax": 1}
    np.testing.assert_array_equal(run_by_onnxruntime(model, x=x), expected)


def test_each_heads_own_three_are_split_within_the_head() -> None:
    """[B, S, H, 3, D], as GPT-NeoX and BLOOM pack them."""
    model = parse(
        f"""(float[B,S,24] x) => (float[B,2,S,4] y) <int64[5] apart = {{0, 0, 2, 3, 4}}, {NUMBERS}>
        {{ r = Reshape(x, apart)  t = Transpose<perm = [3, 0, 2, 1, 4]>(r)  {PICKS["gather"]}  {ATTENTION}"""
    )
    x = np.random.default_rng(0).normal(size=(2, 5, 24)).astype(np.float32)
    expected = run_by_onnxruntime(model, x=x)
    assert packed_picks(model) == 1
    assert ops(model) == {"Reshape": 1, "Transpose": 2, "Split": 1, "MatMul": 2, "Softmax": 1}
    np.testing.assert_array_equal(run_by_onnxruntime(model, x=x), expected)


def test_the_packed_projection_of_torchs_multihead_attention() -> None:
    """Sequence first, batch and heads joined: Split, heads, one Transpose, and one for the keys."""
    heads = "  ".join(
        f"{n}a = Reshape({n}0, joined)  {n}b = Transpose<perm = [1, 0, 2]>({n}a)  {n} = Reshape({n}b, heads)"
        for n in "qkv"
    )
    model = parse(
        f"""(float[7,B,24] x) => (float[B,2,7,4] y) <int64[4] apart = {{0, 0, 3, 8}}, int64[3] joined = {{7, -1, 4}},
        int64[4] heads = {{-1, 2, 7, 4}}, int64[1] last = {{-2}}, {NUMBERS}>
        {{ r = Reshape(x, apart)  u = Unsqueeze(r, z0)  a = Transpose<perm = [3, 1, 2, 0, 4]>(u)
           t = Squeeze(a, last)  q0 = Gather(t, i0)  k0 = Gather(t, i1)  v0 = Gather(t, i2)  {heads}  {ATTENTION}"""
    )
    x = np.random.default_rng(0).normal(size=(7, 3, 24)).astype(np.float32)
    expected = run_by_onnxruntime(model, x=x)
    for one in (view_chains, packed_picks, split_heads, split_heads, view_chains):
        one(model)
    assert ops(model) == {"Reshape": 1, "Transpose": 2, "Split": 1, "MatMul": 2, "Softmax": 1}
    np.testing.assert_array_equal(run_by_onnxruntime(model, x=x), expected)


@pytest.mark.parametrize("keys", [1, 2], ids=["one head for all queries", "grouped queries"])
def test_parts_of_unequal_width_become_heads_together(keys: int) -> None:
    width = keys * 4
    model = parse(
        f"""(float[B,S,{16 + 2 * width}] x) => (float[B,4,S,4] y)
        <int64[3] sizes = {{16, {width}, {width}}}, int64[4] many = {{0, 0, 4, 4}}, int64[4] few = {{0, 0, {keys}, 4}},
         int64[4] times = {{1, {4 // keys}, 1, 1}}>
        {{ a, b, c = Split<axis = 2>(x, sizes)  aq = Reshape(a, many)  bk = Reshape(b, few)  cv = Reshape(c, few)
           q = Transpose<perm = [0, 2, 1, 3]>(aq)  kt = Transpose<perm = [0, 2, 3, 1]>(bk)
           vt = Transpose<perm = [0, 2, 1, 3]>(cv)  kk = Tile(kt, times)  vv = Tile(vt, times)
           w = MatMul(q, kk)  p = Softmax(w)  y = MatMul(p, vv) }}"""
    )
    x = np.random.default_rng(0).normal(size=(2, 5, 16 + 2 * width)).astype(np.float32)
    expected = run_by_onnxruntime(model, x=x)
    assert split_heads(model) == 2
    assert ops(model) == {"Reshape": 1, "Transpose": 2, "Split": 1, "Tile": 2, "MatMul": 2, "Softmax": 1}
    np.testing.assert_array_equal(run_by_onnxruntime(model, x=x), expected)


@pytest.mark.parametrize(
    "body",
    [
        # The picked axis lies inside what follows it nowhere: its parts would be strided.
        "t = Transpose<perm = [2, 1, 0]>(r)  q = Gather(t, i0)  k = Gather(t, i1)  y = Add(q, k)",
        # Not all indices are picked.
        "t = Transpose<perm = [1, 0, 2]>(r)  q = Gather(t, i0)  y = Add(q, q)",
    ],
    ids=["strided", "one of two"],
)
def test_picks_that_are_no_contiguous_parts_stay(body: str) -> None:
    text = f"(float[B,8] x) => (float[N,M] y) <int64[3] a = {{0, 4, 2}}, {NUMBERS}> {{ r = Reshape(x, a)  {body} }}"
    model = parse(text)
    before = ops(model)
    assert packed_picks(model) == 0
    assert ops(model) == before


def test_parts_whose_heads_have_other_sizes_stay() -> None:
    text = """(float[B,S,12] x) => (float[B,S,2,2] y, float[B,S,2,4] z)
    <int64[2] sizes = {4, 8}, int64[4] a = {0, 0, 2, 2}, int64[4] b = {0, 0, 2, 4}>
    { p, q = Split<axis = -1>(x, sizes)  r = Reshape(p, a)  y = Relu(r)  s = Reshape(q, b)  z = Relu(s) }"""
    assert refused(split_heads, text) == []
