"""The scale of an attention, in the weight that makes the queries: against onnxruntime on the graph as it was."""

from __future__ import annotations

import numpy as np
import pytest

from aot import passes
from tests.passes.test_fold_scale import check, model_of, normal
from tests.passes.test_limits import ops, refused


def test_a_number_passes_the_views_between_it_and_the_layer() -> None:
    """The scale of an attention, behind its heads."""
    model = model_of(
        """(float[B,3,8] x) => (float[B,2,3,4] y)
        { a = MatMul(x, w)  b = Add(a, c)  r = Reshape(b, heads)  t = Transpose<perm = [0, 2, 1, 3]>(r)
          y = Mul(t, s) }""",
        w=normal(8, 8),
        c=normal(8),
        s=np.float32(0.5),
        heads=np.array([0, 0, 2, 4], np.int64),
    )
    check(model, {"MatMul": 1, "Add": 1, "Reshape": 1, "Transpose": 1, "Identity": 1}, sites=1, x=normal(2, 3, 8))


def test_the_scale_of_scores_is_the_queries_own() -> None:
    model = model_of(
        """(float[B,3,8] x, float[B,8,3] k) => (float[B,3,3] y)
        { q = MatMul(x, w)  a = MatMul(q, k)  b = Div(a, s)  y = Softmax(b) }""",
        w=normal(8, 8),
        s=np.float32(8),
    )
    check(model, {"MatMul": 2, "Softmax": 1}, sites=1, x=normal(2, 3, 8), k=normal(2, 8, 3))


def test_the_scale_of_scores_that_no_layer_makes_stays() -> None:
    text = """(float[B,3,8] q, float[B,8,3] k) => (float[B,3,3] y) <float s = {8}>
    { a = MatMul(q, k)  b = Div(a, s)  y = Softmax(b) }"""
    assert refused(passes.fold_scale, text) + refused(passes.fold_query_scale, text) == []


@pytest.mark.parametrize("part", [0, 1, 2])
@pytest.mark.parametrize(
    "parts",
    [
        "r = Reshape(b, heads)  t = Transpose<perm = [0, 2, 1, 3]>(r)  q, k, v = Split<axis = 1>(t, thirds)",
        "r = Reshape(b, packs)  t = Transpose<perm = [2, 0, 3, 1, 4]>(r)  q, k, v = Split<axis = 0>(t, ones)",
        "q, k, v = Split<axis = -1>(b, eights)",
    ],
    ids=["heads", "packed", "columns"],
)
def test_the_scale_of_one_of_three_is_in_its_part_of_the_weight(parts: str, part: int) -> None:
    names = ["q", "k", "v"]
    scaled = names[part]
    names[part] = "s"
    model = model_of(
        f"""(float[2,3,8] x) => (float y)
        {{ a = MatMul(x, w)  b = Add(a, c)  {parts}  s = Mul({scaled}, half)
           y = Concat<axis = -1>({", ".join(names)}) }}""",
        w=normal(8, 24),
        c=normal(24),
        half=np.float32(0.5),
        heads=np.array([0, 0, 6, 4], np.int64),
        packs=np.array([2, 3, 3, 2, 4], np.int64),
        thirds=np.array([2, 2, 2], np.int64),
        ones=np.array([1, 1, 1], np.int64),
        eights=np.array([8, 8, 8], np.int64),
    )
    left = dict(ops(model))
    check(model, {op: count for op, count in left.items() if op != "Mul"}, sites=1, x=normal(2, 3, 8))


def test_the_scale_of_some_rows_stays() -> None:
    """A Split along another axis than the channels'."""
    model = model_of(
        """(float[B,2,8] x) => (float[B,1,8] y)
        { a = MatMul(x, w)  q, k = Split<axis = 1>(a, ones)  s = Mul(q, half)  y = Add(s, k) }""",
        w=normal(8, 8),
        half=np.float32(0.5),
        ones=np.array([1, 1], np.int64),
    )
    assert passes.fold_scale(model) + passes.fold_query_scale(model) == 0
