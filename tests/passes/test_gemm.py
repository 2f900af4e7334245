"""Products with a weight: what becomes of a bias and of transposes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from aot import passes
from tests.passes.test_fold_scale import model_of, normal
from tests.passes.test_limits import ops, run_by_onnxruntime


def check(model: ir.Model, left: dict[str, int], **inputs: Any) -> None:
    expected = run_by_onnxruntime(model, **inputs)
    passes.gemm(model)
    assert ops(model) == left
    got = run_by_onnxruntime(model, **inputs)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("order", ["a, c", "c, a"])
@pytest.mark.parametrize("bias", [(6,), (1, 6), (), (3, 1), (3, 6)])
def test_a_product_and_its_bias_in_either_order(order: str, bias: tuple[int, ...]) -> None:
    model = model_of(
        f"(float[3,4] x) => (float[3,6] y) {{ a = MatMul(x, w)  y = Add({order}) }}", w=normal(4, 6), c=normal(*bias)
    )
    check(model, {"Gemm": 1}, x=normal(3, 4))


def test_a_computed_bias_that_broadcasts_to_the_product() -> None:
    model = model_of(
        "(float[B,4] x, float[B,6] h) => (float[B,6] y) { f = Relu(h)  a = MatMul(x, w)  y = Add(f, a) }",
        w=normal(4, 6),
    )
    check(model, {"Relu": 1, "Gemm": 1}, x=normal(3, 4), h=normal(3, 6))


@pytest.mark.parametrize(
    ("signature", "weight", "bias"),
    [
        ("(float[B,S,4] x) => (float[B,S,6] y)", (4, 6), (6,)),
        ("(float[B,4] x) => (float[2,B,6] y)", (2, 4, 6), (6,)),
        ("(float[B,4] x) => (float[2,B,6] y)", (4, 6), (2, 1, 6)),
        ("(float[1,4] x) => (float[3,6] y)", (4, 6), (3, 6)),
        ("(float[4] x) => (float[6] y)", (4, 6), (6,)),
    ],
    ids=["rows in two dims", "weights in a batch", "bias of three dims", "bias with more rows", "a vector"],
)
def test_what_is_no_gemm_stays(signature: str, weight: tuple[int, ...], bias: tuple[int, ...]) -> None:
    model = model_of(f"{signature} {{ a = MatMul(x, w)  y = Add(a, c) }}", w=normal(*weight), c=normal(*bias))
    assert passes.gemm(model) == 0


def test_a_product_that_is_read_twice_keeps_its_bias_apart() -> None:
    model = model_of(
        "(float[B,4] x) => (float[B,6] y, float[B,6] z) { a = MatMul(x, w)  y = Add(a, c)  z = Relu(a) }",
        w=normal(4, 6),
        c=normal(6),
    )
    assert passes.gemm(model) == 0


def test_a_product_of_two_activations_and_one_of_integers_stay() -> None:
    model = model_of("(float[B,4] x, float[4,B] k) => (float[B,B] y) { a = MatMul(x, k)  y = Add(a, c) }", c=normal(1))
    assert passes.gemm(model) == 0
    whole = model_of(
        "(int32[B,4] x) => (int32[B,2] y) { a = MatMul(x, w)  y = Add(a, c) }",
        w=np.ones((4, 2), np.int32),
        c=np.ones(2, np.int32),
    )
    assert passes.gemm(whole) == 0


def test_a_weight_that_an_embedding_shares_is_read_as_it_lies() -> None:
    """Tied weights: turned, they would be in the file twice."""
    model = model_of(
        """(int64[B] ids) => (float[B,9] y)
        { e = Gather(table, ids)  t = Transpose<perm = [1, 0]>(table)  y = MatMul(e, t) }""",
        table=normal(9, 4),
    )
    check(model, {"Gather": 1, "Gemm": 1}, ids=np.array([3, 0, 8]))
    assert list(model.graph.initializers) == ["table"]


@pytest.mark.parametrize("turned", ["transB = 0", "transB = 1"])
def test_transposes_around_a_gemm_are_its_own(turned: str) -> None:
    model = model_of(
        f"""(float[4,B] x) => (float[B,6] y)
        {{ s = Transpose(x)  t = Transpose(w)  y = Gemm<{turned}>(s, t, c) }}""",
        w=normal(4, 6) if turned == "transB = 1" else normal(6, 4),
        c=normal(6),
    )
    check(model, {"Gemm": 1}, x=normal(4, 3))
