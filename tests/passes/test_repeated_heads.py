"""Grouped queries: against torch's own repeat and onnxruntime on the graph before."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aot.passes.repeated_heads import repeated_heads
from tests.passes.test_limits import ops, parse, refused, run_by_onnxruntime


def repeated(heads: int, times: int, rest: str) -> str:
    return f"""<int64[1] two = {{2}}, int64[2] heads = {{{heads}, {times}}}, int64[1] size = {{3}},
     int64[4] joined = {{0, {heads * times}, -1, 3}}>
    {{ u = Unsqueeze(k, two)  b = Shape<start = 0, end = 1>(k)  s = Shape<start = 2, end = 3>(k)
      t = Concat<axis = 0>(b, heads, s, size)  e = Expand(u, t)  r = Reshape(e, joined)  {rest} }}"""


def test_heads_are_repeated_as_torch_repeats_them() -> None:
    model = parse("(float[B,2,S,3] k) => (float[B,6,S,3] y)" + repeated(2, 3, "y = Neg(r)"))
    k = np.random.default_rng(0).normal(size=(2, 2, 5, 3)).astype(np.float32)
    assert repeated_heads(model) == 1
    assert ops(model) == {"Gather": 1, "Neg": 1}
    expected = -torch.repeat_interleave(torch.from_numpy(k), 3, dim=1).numpy()
    np.testing.assert_array_equal(run_by_onnxruntime(model, k=k), expected)


def test_one_head_for_all_queries_is_not_repeated() -> None:
    model = parse(
        "(float[B,1,S,3] k, float[B,4,S,3] q) => (float[B,4,S,S] y)"
        + repeated(1, 4, "m = Transpose<perm = [0, 1, 3, 2]>(r)  y = MatMul(q, m)")
    )
    rng = np.random.default_rng(0)
    k, q = rng.normal(size=(2, 1, 5, 3)).astype(np.float32), rng.normal(size=(2, 4, 5, 3)).astype(np.float32)
    expected = run_by_onnxruntime(model, k=k, q=q)
    assert repeated_heads(model) == 1
    assert ops(model) == {"Transpose": 1, "MatMul": 1}
    np.testing.assert_allclose(run_by_onnxruntime(model, k=k, q=q), expected, rtol=1e-5, atol=1e-6)


def test_one_head_that_is_multiplied_with_one_head_is_repeated() -> None:
    """The product's shape would be another."""
    model = parse("(float[B,1,S,3] k, float[B,1,3,S] q) => (float[B,4,S,S] y)" + repeated(1, 4, "y = MatMul(r, q)"))
    assert repeated_heads(model) == 1
    assert ops(model) == {"Gather": 1, "MatMul": 1}


@pytest.mark.parametrize(("was", "now"), [("two = {2}", "two = {1}"), ("0, 6", "0, 3")], ids=["tiled", "not joined"])
def test_other_repetitions_stay(was: str, now: str) -> None:
    text = "(float[B,2,S,3] k) => (float[B,P,Q,R] y)" + repeated(2, 3, "y = Neg(r)").replace(was, now)
    if was == "two = {2}":
        text = text.replace("heads = {2, 3}", "heads = {3, 2}")
    assert refused(repeated_heads, text) == []
