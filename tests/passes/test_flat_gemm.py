"""A Gemm between reshapes: against onnxruntime on the graph before, and where it stays."""

from __future__ import annotations

import numpy as np
import pytest

from aot.passes.flat_gemm import flat_gemm
from tests.passes.test_limits import ops, parse, refused, run_by_onnxruntime

WEIGHTS = """<float[2,3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {1, 2, 3}, int64[2] flat = {-1, 2},
 int64[3] wide = {4, -1, 3}>"""


@pytest.mark.parametrize("bias", [", b", ""], ids=["with bias", "without bias"])
def test_both_reshapes_go_where_the_shape_stays(bias: str) -> None:
    model = parse(
        f"""(float[4,B,2] x) => (float[4,B,3] y) {WEIGHTS}
        {{ r = Reshape(x, flat)  g = Gemm(r, w{bias})  y = Reshape(g, wide) }}"""
    )
    x = np.random.default_rng(0).normal(size=(4, 3, 2)).astype(np.float32)
    expected = run_by_onnxruntime(model, x=x)
    assert flat_gemm(model) == 1
    assert ops(model) == ({"MatMul": 1, "Add": 1} if bias else {"MatMul": 1})
    np.testing.assert_allclose(run_by_onnxruntime(model, x=x), expected, rtol=1e-5)


@pytest.mark.parametrize("product", ["Gemm(r, w)", "MatMul(r, w)"])
def test_a_product_without_a_bias_takes_the_place_of_all_three(product: str) -> None:
    model = parse(
        f"""(float[4,B,2] x) => (float[4,B,3] y) {WEIGHTS}
        {{ r = Reshape(x, flat)  g = {product}  y = Reshape(g, wide) }}"""
    )
    x = np.random.default_rng(0).normal(size=(4, 3, 2)).astype(np.float32)
    expected = run_by_onnxruntime(model, x=x)
    assert flat_gemm(model) == 1
    assert ops(model) == {"MatMul": 1}
    np.testing.assert_allclose(run_by_onnxruntime(model, x=x), expected, rtol=1e-5)


def test_a_product_of_more_than_matrices_stays() -> None:
    """Its Reshape parts the rows, which the weight does not see."""
    text = f"""(float[4,6,2] x) => (float[4,6,3] y) {WEIGHTS.replace("{-1, 2}", "{-1, 2, 2}").replace("[2] f", "[3] f")}
    {{ r = Reshape(x, flat)  g = MatMul(r, w)  y = Reshape(g, wide) }}"""
    assert refused(flat_gemm, text) == []


def test_the_first_reshape_joins_the_heads() -> None:
    model = parse(f"""(float[4,B,2,1] x) => (float[4,B,3] y) {WEIGHTS}
    {{ r = Reshape(x, flat)  g = Gemm(r, w, b)  y = Reshape(g, wide) }}""")
    x = np.random.default_rng(0).normal(size=(4, 3, 2, 1)).astype(np.float32)
    expected = run_by_onnxruntime(model, x=x)
    assert flat_gemm(model) == 1
    assert ops(model) == {"Squeeze": 1, "MatMul": 1, "Add": 1}
    np.testing.assert_allclose(run_by_onnxruntime(model, x=x), expected, rtol=1e-5)


@pytest.mark.parametrize(
    "body",
    [
        "r = Reshape(x, flat)  g = Gemm<alpha = 2.0>(r, w, b)  y = Reshape(g, wide)",
        "r = Reshape(x, flat)  g = Gemm(r, w, b)  y = Reshape(g, parted)",
    ],
    ids=["a factor", "columns taken apart"],
)
def test_what_is_no_plain_layer_stays(body: str) -> None:
    weights = WEIGHTS.replace(">", ", int64[3] parted = {0, 3, 1}>")
    assert refused(flat_gemm, f"(float[4,B,2] x) => (float[P,Q,R] y) {weights} {{ {body} }}") == []
