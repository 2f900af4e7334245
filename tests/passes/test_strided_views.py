"""Gathers that count through all elements, as torch decomposes an adaptive pool; and those that do not."""

from __future__ import annotations

import numpy as np
import pytest

from aot import passes
from tests.passes.test_chains import ops, parse, run


def text(inner: str, factor: int = 6, start: int = 0, shape: str = "B,2,3") -> str:
    return f"""(float[B,2,3] x) => (float[{shape}] y)
    <int64 first = {{{start}}}, int64 one = {{1}}, int64 factor = {{{factor}}}, int64[1] flat = {{-1}},
     int64[2] right = {{1, 2}}, int64[1,2,3] inner = {{{inner}}}, int64[B] r>
    {{ b = Shape<end = 1>(x)  n = Squeeze(b)  r = Range(first, n, one)  m = Mul(factor, r)  u = Unsqueeze(m, right)
      index = Add(inner, u)  f = Reshape(x, flat)  y = Gather(f, index) }}"""


@pytest.mark.parametrize("size", [1, 4])
def test_counting_through_everything_is_a_view(size: int) -> None:
    model = parse(text("0, 1, 2, 3, 4, 5"))
    assert passes.strided_views(model) == 1
    assert ops(model) == ["Reshape"]
    x = np.random.default_rng(0).normal(size=(size, 2, 3)).astype(np.float32)
    np.testing.assert_array_equal(run(model, x=x)[0], x)


@pytest.mark.parametrize(
    ("inner", "factor", "start"),
    [("0, 2, 4, 1, 3, 5", 6, 0), ("0, 1, 2, 3, 4, 4", 6, 0), ("0, 1, 2, 3, 4, 5", 3, 0), ("1, 2, 3, 4, 5, 6", 6, 0)],
    ids=["transposed", "irregular", "overlapping", "from one on"],
)
def test_counting_otherwise_stays_a_gather(inner: str, factor: int, start: int) -> None:
    assert passes.strided_views(parse(text(inner, factor, start))) == 0
