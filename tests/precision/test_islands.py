"""What stays FP32 in a FP16 or BF16 network, and that it matters."""

from __future__ import annotations

import numpy as np
import pytest

from aot.precision.constants import MASK
from tests.precision.graphs import (
    FP16,
    FP32,
    converted,
    graph,
    node,
    observe,
    ops,
    precisions,
    reasons,
    recipe,
    run,
    value,
)

rng = np.random.default_rng(1)
EPS = np.array(1e-12, np.float32)
ONE = np.array(1.0, np.float32)


def test_a_value_beyond_half_of_fp16s_range_keeps_its_neighbours_fp32() -> None:
    text = "g (float[B, 4] x) => (float[B, 4] y) { a = MatMul(x, w)  b = MatMul(a, v)  c = Tanh(b)  y = MatMul(c, v) }"
    w = np.full((4, 4), 5000.0, np.float32)
    model, outcome = converted(
        graph(text, w=w, v=np.eye(4, dtype=np.float32)), "fp16", {"a": 40000.0, "b": 40000.0, "c": 1.0}
    )
    assert precisions(outcome) == {"a": "fp32", "b": "fp32", "c": "fp32", "y": "fp16"}
    assert "4e+04" in reasons(outcome)["a"]
    assert "65504" in reasons(outcome)["a"]
    x = np.full((1, 4), 3.0, np.float32)  # 60,000 in a: further than calibration, inside FP32
    np.testing.assert_allclose(run(model, {"x": x})["y"], 1.0, rtol=1e-3)


def test_just_inside_the_range_stays_fp16() -> None:
    text = "g (float[B, 4] x) => (float[B, 4] y) { y = Relu(x) }"
    assert precisions(converted(graph(text), "fp16", {"x": 32752.0, "y": 32752.0})[1]) == {"y": "fp16"}
    assert precisions(converted(graph(text), "fp16", {"x": 32753.0, "y": 32753.0})[1]) == {"y": "fp32"}
    assert precisions(converted(graph(text), "bf16", {"x": 1e9, "y": 1e9})[1]) == {"y": "bf16"}


def test_masks_are_clamped_and_stay_finite() -> None:
    """(1 - keep) * -1e12 and then the lowest FP32 number on top, left-padded: case of every ported BERT."""
    text = """g (float[B, T, T] s, float[B, 1, T] keep, bool[T, T] later) => (float[B, T, T] y)
    { n = Sub(one, keep)  m = Mul(n, big)  a = Add(s, m)  b = Where(later, low, a)  c = Add(b, m)  y = Softmax(c) }"""
    source = graph(text, one=ONE, big=np.array(-1e12, np.float32), low=np.array(np.finfo(np.float32).min))
    keep = np.array([[[1, 1, 1, 1]], [[0, 0, 1, 1]]], np.float32)
    feeds = {
        "s": rng.standard_normal((2, 4, 4)).astype(np.float32),
        "keep": keep,
        "later": np.triu(np.ones((4, 4), bool), 1),
    }
    model, outcome = converted(source, "fp16", observe(source, feeds))
    assert set(precisions(outcome).values()) == {"fp16"}
    stored = [float(v.const_value.numpy()) for v in model.graph.initializers.values()]
    assert sorted(stored) == [-MASK, -MASK, 1.0]
    assert np.isfinite(np.float16(-MASK) + np.float16(-MASK) + np.float16(-5000))
    expected, got = run(source, feeds)["y"], run(model, feeds)["y"]
    live = np.tril(np.ones((4, 4), bool)) & (keep > 0)
    rows = live.any(-1)  # a row without any key belongs to a padding query
    np.testing.assert_allclose(got[rows], expected[rows], atol=2e-3)
    assert np.isfinite(got).all()


def test_a_mask_that_fp16_holds_is_a_mask_all_the_same() -> None:
    """-32768 doubled leaves FP16, as a range it would keep every softmax FP32."""
    text = """g (float[B, T, T] s, bool[B, 1, T] keep, float[B, T, 8] v) => (float[B, T, 8] y)
    { m = Where(keep, zero, low)  a = Add(s, m)  b = Add(a, m)  p = Softmax(b)  y = MatMul(p, v) }"""
    source = graph(text, zero=np.zeros((), np.float32), low=np.array(-32768.0, np.float32))
    feeds = {
        "s": rng.standard_normal((2, 4, 4)).astype(np.float32),
        "keep": np.array([[[True] * 4], [[True, True, False, False]]]),
        "v": np.ones((2, 4, 8), np.float32),
    }
    model, outcome = converted(source, "fp16", observe(source, feeds))
    assert set(precisions(outcome).values()) == {"fp16"}
    assert float(node(model, "m").inputs[2].const_value.numpy()) == -MASK
    np.testing.assert_allclose(run(model, feeds)["y"], 1.0, rtol=1e-3)


def test_a_large_constant_that_is_no_mask_is_not_clamped() -> None:
    text = "g (float[B, 4] x) => (float[B, 4] y) { a = Mul(x, big)  b = Div(a, big)  y = MatMul(b, w) }"
    model, outcome = converted(graph(text, big=np.array(1e6, np.float32), w=np.eye(4, dtype=np.float32)), "fp16", {})
    assert precisions(outcome) == {"a": "fp32", "b": "fp32", "y": "fp16"}
    assert "1e+06" in reasons(outcome)["a"]
    np.testing.assert_allclose(run(model, {"x": np.full((1, 4), 0.5, np.float32)})["y"], 0.5)


def test_the_bounds_of_a_clip_are_clamped() -> None:
    text = "g (float[B, 4] x) => (float[B, 4] y) { y = Clip(x, low) }"
    model, outcome = converted(graph(text, low=np.array(np.finfo(np.float32).min)), "fp16", {"x": 2.0, "y": 2.0})
    assert precisions(outcome) == {"y": "fp16"}
    assert float(node(model, "y").inputs[1].const_value.numpy()) == -65504.0


def test_an_eps_that_fp16_loses_is_kept_up_to_the_division() -> None:
    text = """g (float[B, 4] x) => (float[B, 4] y)
    { h = MatMul(x, w)  a = Abs(h)  n = ReduceMax <keepdims = 1> (a, axis)  d = Add(n, eps)
      e = Expand(d, four)  y = Div(h, e) }"""
    source = graph(text, w=np.eye(4, dtype=np.float32), eps=EPS, axis=np.array([1]), four=np.array([1, 4]))
    model, outcome = converted(source, "fp16", {})
    assert {k: v for k, v in precisions(outcome).items() if v == "fp32"} == {"d": "fp32", "e": "fp32", "y": "fp32"}
    assert "1e-12" in reasons(outcome)["d"]
    np.testing.assert_array_equal(run(model, {"x": np.zeros((1, 4), np.float32)})["y"], 0.0)  # FP16: 0 / 0


RMS = """g (float[B, T, 8] x) => (float[B, T, 8] y)
{ h = MatMul(x, w)  q = Pow(h, two)  m = ReduceMean <keepdims = 1> (q, axis)  v = Add(m, eps)
  s = Sqrt(v)  r = Reciprocal(s)  n = Mul(h, r)  y = MatMul(n, w) }"""
RMS_WEIGHTS = {
    "w": np.eye(8, dtype=np.float32),
    "two": np.array(2.0, np.float32),
    "axis": np.array([-1]),
    "eps": np.array(1e-6, np.float32),
}


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_norm_statistics_written_by_hand_are_fp32(precision: str) -> None:
    _, outcome = converted(graph(RMS, **RMS_WEIGHTS), precision, {})
    assert [k for k, v in precisions(outcome).items() if v == "fp32"] == ["q", "m", "v", "s", "r", "n"]


def test_norm_statistics_survive_a_large_residual_stream() -> None:
    source = graph(RMS, **RMS_WEIGHTS)
    x = (600 * rng.standard_normal((2, 3, 8))).astype(np.float32)
    model, _ = converted(source, "fp16", observe(source, {"x": x}))
    assert value(model, "h").dtype == FP16
    assert value(model, "q").dtype == FP32
    np.testing.assert_allclose(run(model, {"x": x})["y"], run(source, {"x": x})["y"], rtol=2e-2, atol=1e-2)


LAYER_NORM = "g (float[B, 8] x) => (float[B, 8] y) { y = LayerNormalization <axis = -1> (x, g, b) }"


@pytest.mark.parametrize(("amax", "precision"), [(10.0, "fp16"), (255.0, "fp16"), (257.0, "fp32")])
def test_layer_norm_is_fp16_until_its_squares_leave_the_range(amax: float, precision: str) -> None:
    weights = {"g": np.ones(8, np.float32), "b": np.zeros(8, np.float32)}
    _, outcome = converted(graph(LAYER_NORM, **weights), "fp16", {"x": amax})
    assert precisions(outcome) == {"y": precision}


def test_softmax_in_attention_has_no_cast_around_it() -> None:
    text = """g (float[B, T, 8] q, float[B, 8, T] k, float[B, T, 8] v) => (float[B, T, 8] y)
    { s = MatMul(q, k)  p = Softmax(s)  y = MatMul(p, v) }"""
    model, _ = converted(graph(text), "fp16", {"s": 50.0, "p": 1.0})
    assert ops(model) == ["Cast", "Cast", "Cast", "MatMul", "Softmax", "MatMul", "Cast"]


def test_a_sum_over_a_dynamic_axis_is_fp32() -> None:
    text = """g (float[B, T, 8] x) => (float[B, 8] y)
    { h = MatMul(x, w)  s = ReduceSum <keepdims = 0> (h, axis)  y = MatMul(s, w) }"""
    weights = {"w": np.eye(8, dtype=np.float32)}
    _, outcome = converted(graph(text, axis=np.array([1]), **weights), "fp16", {})
    assert precisions(outcome) == {"h": "fp16", "s": "fp32", "y": "fp16"}
    assert "dynamic axis 1 (T)" in reasons(outcome)["s"]
    _, outcome = converted(graph(text, axis=np.array([2]), **weights), "fp16", {})
    assert precisions(outcome)["s"] == "fp16"


def test_positions_and_their_angles_are_fp32() -> None:
    text = """g (int64[T] p) => (float[T, 4] y)
    { f = Cast <to = 1> (p)  u = Unsqueeze(f, axis)  a = Mul(u, freq)  c = Cos(a)  y = MatMul(c, w) }"""
    freq = np.array([[1.0, 0.31, 0.07, 0.01]], np.float32)
    source = graph(text, axis=np.array([1]), freq=freq, w=np.eye(4, dtype=np.float32))
    feeds = {"p": np.arange(500)}
    for precision in ("fp16", "bf16"):
        model, outcome = converted(source, precision, observe(source, feeds))
        assert precisions(outcome) == {"f": "fp32", "u": "fp32", "a": "fp32", "c": "fp32", "y": precision}
    model, _ = converted(source, "fp16", observe(source, feeds))
    np.testing.assert_allclose(run(model, feeds)["y"], np.cos(np.arange(500)[:, None] * freq), atol=1e-3)


@pytest.mark.parametrize(
    ("largest", "fp16", "bf16"), [(256, "fp16", "bf16"), (300, "fp16", "fp32"), (3000, "fp32", "fp32")]
)
def test_integers_in_floats_are_fp32_beyond_what_is_exact(largest: int, fp16: str, bf16: str) -> None:
    source = graph("g (int64[T] p) => (float[T] y) { f = Cast <to = 1> (p)  y = Add(f, one) }", one=ONE)
    amax = {"f": float(largest), "y": largest + 0.0}
    assert precisions(converted(source, "fp16", amax)[1])["f"] == fp16
    assert precisions(converted(source, "bf16", amax)[1])["f"] == bf16


def test_a_table_lookup_is_not_position_arithmetic() -> None:
    text = "g (int64[T] p) => (float[T, 4] y) { e = Gather(table, p)  y = Cos(e) }"
    model, outcome = converted(graph(text, table=np.ones((9, 4), np.float32)), "fp16", {"e": 1.0})
    assert set(precisions(outcome).values()) == {"fp16"}
    assert model.graph.initializers["table"].dtype == FP16


def test_the_recipe_can_keep_an_operator_type_fp32() -> None:
    wanted = recipe("fp16").model_copy(update={"keep_fp32": ("Softmax",)})
    text = "g (float[B, 4] x) => (float[B, 4] y) { a = MatMul(x, w)  b = Softmax(a)  y = MatMul(b, w) }"
    _, outcome = converted(graph(text, w=np.eye(4, dtype=np.float32)), wanted, {})
    assert precisions(outcome) == {"a": "fp16", "b": "fp32", "y": "fp16"}


def test_bf16_keeps_transposed_convolution_fp32() -> None:
    text = "g (float[B, 4, 5, 5] x) => (float[B, 4, 7, 7] y) { y = ConvTranspose(x, w) }"
    made = graph(text, w=np.ones((4, 4, 3, 3), np.float32))
    assert precisions(converted(made, "bf16", {})[1]) == {"y": "fp32"}
    assert precisions(converted(made, "fp16", {})[1]) == {"y": "fp16"}


def test_cheap_nodes_between_islands_are_not_cast_there_and_back() -> None:
    text = """g (float[B, 4] x) => (float[B, 2, 2] y)
    { a = Exp(x)  b = Neg(a)  c = Reshape(b, shape)  y = Exp(c) }"""
    wanted = recipe("fp16").model_copy(update={"keep_fp32": ("Exp",)})
    model, outcome = converted(graph(text, shape=np.array([-1, 2, 2])), wanted, {})
    assert set(precisions(outcome).values()) == {"fp32"}
    assert "Cast" not in ops(model)


def test_bf16_keeps_a_layer_that_cancels_and_the_one_before_it() -> None:
    """Outputs of 1 from a bias of 200: one BF16 rounding of the product is most of the output."""
    text = "g (float[B, 4] x) => (float[B, 4] y) { h = Gemm(x, v, c)  k = Gemm(h, w, b)  y = Relu(k) }"
    weights = {
        "v": np.eye(4, dtype=np.float32),
        "c": np.full(4, 4.0, np.float32),
        "w": np.full((4, 4), 12.5, np.float32),
        "b": np.full(4, -200.0, np.float32),
    }
    amax = {"x": 0.02, "h": 4.02, "k": 1.0, "y": 1.0}
    _, outcome = converted(graph(text, **weights), "bf16", amax)
    assert [precisions(outcome)[n] for n in ("h", "k")] == ["fp32", "fp32"]
    assert "grow 200 times" in reasons(outcome)["k"]
    _, outcome = converted(graph(text, **weights), "fp16", amax)
    assert [precisions(outcome)[n] for n in ("h", "k")] == ["fp16", "fp16"]
