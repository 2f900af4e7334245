"""What a rounding of the input changes beyond measure stays FP32, by the ranges that were observed."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from aot.precision import Outcome, apply
from aot.statistics import Statistics
from tests.precision.graphs import (
    FP32,
    Array,
    converted,
    graph,
    node,
    precisions,
    reasons,
    recipe,
    run,
    value,
)

rng = np.random.default_rng(8)
ATTENTION = """g (float[B, T, 8] q, float[B, 8, T] k, float[B, T, 8] v) => (float[B, T, 8] y)
{ s = MatMul(q, k)  p = Softmax(s)  y = MatMul(p, v) }"""


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


@pytest.mark.parametrize(
    ("precision", "amax", "wide"),
    [("fp16", 500.0, False), ("fp16", 520.0, True), ("bf16", 60.0, False), ("bf16", 70.0, True)],
)
def test_a_softmax_of_scores_that_are_rounded_by_a_quarter_is_fp32_and_so_is_their_product(
    precision: str, amax: float, wide: bool
) -> None:
    """512 is where AutoCast of Model Optimizer draws its line for every node; BF16 has three bits fewer."""
    _, outcome = converted(graph(ATTENTION), precision, {"q": 3.0, "k": 3.0, "v": 1.0, "s": amax, "p": 1.0, "y": 1.0})
    kept = {"s": "fp32", "p": "fp32"} if wide else {"s": precision, "p": precision}
    assert precisions(outcome) == {**kept, "y": precision}
    assert ("Softmax of values up to" in reasons(outcome)["s"]) == wide


def test_fp32_scores_are_worth_it() -> None:
    """The shares that FP16 scores around 1,000 give are off by half; with FP32 scores by the rounding of q and k."""
    q = (np.float32(12.0) + rng.standard_normal((1, 8, 8))).astype(np.float16).astype(np.float32)
    k = (np.float32(12.0) + 0.02 * rng.standard_normal((1, 8, 8))).astype(np.float16).astype(np.float32)
    v = rng.standard_normal((1, 8, 8)).astype(np.float32)
    feeds = {"q": q, "k": k, "v": v}
    exact = softmax(q @ k) @ v
    narrow = softmax((q @ k).astype(np.float16).astype(np.float32)) @ v
    source = graph(ATTENTION)
    model, _ = converted(source, "fp16", {"q": 20.0, "k": 13.0, "v": 4.0, "s": 1300.0, "p": 1.0, "y": 4.0})
    assert value(model, "s").dtype == FP32
    ours = run(model, feeds)["y"]
    assert np.abs(ours - exact).max() < 5e-3 < np.abs(narrow - exact).max()


def statistics(**spans: tuple[float, float]) -> Statistics:
    found = Statistics()
    for name, (low, high) in spans.items():
        found.extremes(name, low, high, 2)
    return found


def with_spans(body: str, precision: str = "fp16", **spans: tuple[float, float]) -> Outcome:
    found = statistics(**spans)
    return apply(graph(body), recipe(precision), found.amax(), found)


def test_scores_far_below_the_highest_do_not_count() -> None:
    """Distances of ALiBi reach -1,000 where exp is 0, rounded or not."""
    spans = {"q": (-3.0, 3.0), "k": (-3.0, 3.0), "v": (-1.0, 1.0), "p": (0.0, 1.0), "y": (-1.0, 1.0)}
    assert precisions(with_spans(ATTENTION, s=(-1000.0, 9.0), **spans))["s"] == "fp16"
    assert precisions(with_spans(ATTENTION, s=(-9.0, 1000.0), **spans))["s"] == "fp32"


def test_a_mask_is_looked_through() -> None:
    text = """g (float[B, T, T] s, float[B, 1, T] keep) => (float[B, T, T] y)
    { h = Relu(s)  n = Sub(one, keep)  m = Mul(n, big)  a = Add(h, m)  y = Softmax(a) }"""
    weights = {"one": np.array(1.0, np.float32), "big": np.array(-1e4, np.float32)}
    for highest, precision in ((50.0, "bf16"), (100.0, "fp32")):
        amax = {"s": highest, "h": highest, "n": 1.0, "m": 1e4, "a": 1e4, "y": 1.0, "keep": 1.0}
        _, outcome = converted(graph(text, 20, **weights), "bf16", amax)
        assert precisions(outcome)["y"] == precision
        assert precisions(outcome)["h"] == precision


@pytest.mark.parametrize("op", ["Sin", "Cos", "Floor", "Round", "Cast <to = 7>"])
def test_the_phase_and_the_whole_part_of_large_values_are_fp32(op: str) -> None:
    to = "int64" if "Cast" in op else "float"
    text = f"g (float[B, 8] x) => ({to}[B, 8] y) {{ h = Mul(x, x)  y = {op} (h) }}"
    assert precisions(converted(graph(text), "fp16", {"x": 30.0, "h": 900.0, "y": 1.0})[1])["h"] == "fp32"
    assert precisions(converted(graph(text), "fp16", {"x": 20.0, "h": 400.0, "y": 1.0})[1])["h"] == "fp16"


@pytest.mark.parametrize(
    "body",
    [
        "{ h = Mul(x, x)  y = Log(h) }",
        "{ h = Mul(x, x)  y = Reciprocal(h) }",
        "{ h = Mul(x, x)  y = Div(x, h) }",
        "{ h = Mul(x, x)  r = Sqrt(h)  y = Reciprocal(r) }",
    ],
)
def test_what_is_divided_by_or_has_a_logarithm_is_fp32_where_it_came_near_zero(body: str) -> None:
    text = f"g (float[B, 8] x) => (float[B, 8] y) {body}"
    near = {"x": (-1.0, 1.0), "h": (1e-9, 1.0), "r": (3e-5, 1.0), "y": (-21.0, 0.0)}
    far = {**near, "h": (1e-3, 1.0), "r": (0.03, 1.0)}
    assert set(precisions(with_spans(text, **near)).values()) == {"fp32"}
    assert set(precisions(with_spans(text, **far)).values()) == {"fp16"}
    assert set(precisions(with_spans(text, "bf16", **near)).values()) == {"bf16"}  # which has FP32's exponents


def test_the_logarithm_of_what_fp16_makes_zero() -> None:
    text = "g (float[B, 8] x) => (float[B, 8] y) { h = Mul(x, x)  y = Log(h) }"
    x = np.full((1, 8), 1e-4, np.float32)  # 1e-8 squared: below FP16's smallest number
    model = graph(text)
    seen = statistics(x=(1e-4, 1e-4), h=(1e-8, 1e-8), y=(-18.5, -18.4))
    apply(model, recipe("fp16"), seen.amax(), seen)
    np.testing.assert_allclose(run(model, {"x": x})["y"], np.log(x.astype(np.float64) ** 2), rtol=1e-3)


def test_values_that_all_stay_below_the_smallest_normal_number_are_fp32() -> None:
    text = "g (float[B, 8] x) => (float[B, 8] y) { h = Mul(x, x)  y = MatMul(h, w) }"
    w = np.eye(8, dtype=np.float32)
    _, outcome = converted(graph(text, 20, w=w), "fp16", {"x": 1e-3, "h": 1e-6, "y": 1e-6})
    assert precisions(outcome) == {"h": "fp32", "y": "fp32"}
    assert "h reached only 1e-06; FP16 loses values below 6.1e-05" in reasons(outcome)["h"]
    _, outcome = converted(graph(text, 20, w=w), "fp16", {"x": 0.0, "h": 0.0, "y": 0.0})
    assert set(precisions(outcome).values()) == {"fp16"}


def test_bf16_holds_three_bits_fewer_than_fp16() -> None:
    """What the two limits follow from: half a step of the largest score is about 0.25."""
    for dtype, limit in ((np.float16, 511.0), (ml_dtypes.bfloat16, 63.9)):
        values = np.linspace(limit * 0.75, limit, 1001).astype(np.float32)
        error = np.abs(values.astype(dtype).astype(np.float32) - values).max()
        assert 0.1 < error <= 0.25


def test_ranges_that_a_calibrator_clipped_decide_nothing() -> None:
    """A percentile of 100 says that the scale stops there; the value reached 60,000 all the same."""
    text = "g (float[B, 8] x) => (float[B, 8] y) { h = MatMul(x, w)  y = MatMul(h, w) }"
    seen = statistics(x=(-1.0, 1.0), h=(-60000.0, 60000.0), y=(-1.0, 1.0))
    clipped = {"x": 1.0, "h": 100.0, "y": 1.0}
    model = graph(text, 20, w=np.eye(8, dtype=np.float32))
    outcome = apply(model, recipe("int8"), clipped, seen)
    assert precisions(outcome) == {"h": "fp32", "y": "fp32"}
    assert node(model, "h").inputs[0].dtype == FP32  # type: ignore[union-attr]
