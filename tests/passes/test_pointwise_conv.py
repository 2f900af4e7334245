"""Linear layers over the channels of an image: against onnxruntime on the graph before, and where they stay."""

from __future__ import annotations

import numpy as np
import pytest

from aot.passes.pointwise_conv import pointwise_conv
from tests.passes.test_limits import ops, parse, refused, run_by_onnxruntime

HEAD = """(float[B,2,3,4] x) => (float[B,3,3,4] y) <float[2,3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {1, 2, 3},
 int64[3] flat = {0, 0, -1}, int64[4] image = {0, 3, 3, 4}, int64[4] other = {0, 3, 4, 3}>"""
BODIES = {
    "flattened": """{ r = Reshape(x, flat)  t = Transpose<perm = [0, 2, 1]>(r)  m = MatMul(t, w)  a = Add(b, m)
      u = Transpose<perm = [0, 2, 1]>(a)  y = Reshape(u, image) }""",
    "as an image, without bias": """{ t = Transpose<perm = [0, 2, 3, 1]>(x)  m = MatMul(t, w)
      y = Transpose<perm = [0, 3, 1, 2]>(m) }""",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_it_is_a_convolution(body: str) -> None:
    model = parse(HEAD + body)
    x = np.random.default_rng(0).normal(size=(2, 2, 3, 4)).astype(np.float32)
    expected = run_by_onnxruntime(model, x=x)
    assert pointwise_conv(model) == 1
    assert ops(model) == {"Conv": 1}
    np.testing.assert_allclose(run_by_onnxruntime(model, x=x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("was", "now"),
    [("perm = [0, 3, 1, 2]>(m)", "perm = [0, 3, 2, 1]>(m)"), ("<perm = [0, 2, 3, 1]>(x)", "<perm = [0, 3, 2, 1]>(x)")],
    ids=["rows and columns swapped behind", "and in front"],
)
def test_other_orders_stay(was: str, now: str) -> None:
    text = HEAD.replace("B,3,3,4] y", "N,P,Q,R] y") + BODIES["as an image, without bias"].replace(was, now)
    assert refused(pointwise_conv, text) == []


def test_an_image_of_another_size_is_another_tensor() -> None:
    text = HEAD.replace("B,3,3,4] y", "N,P,Q,R] y") + BODIES["flattened"].replace("(u, image)", "(u, other)")
    assert refused(pointwise_conv, text) == []
