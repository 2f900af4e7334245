"""Adaptive rounding: against exhaustive search, against rounding to the nearest, and in a graph."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from aot.config import Recipe
from aot.precision import apply
from aot.precision.formats import FP8, INT4, INT8, Quantized
from aot.precision.weights.rounding import round_adaptively
from tests.precision.graphs import Array, graph
from tests.precision.weights.observing import outputs, relative, statistics

rng = np.random.default_rng(14)


def correlated(rows: int, size: int) -> Array:
    """Inputs that go together, as those of real layers do."""
    few = rng.standard_normal((rows, max(size // 4, 1)))
    return (few @ rng.standard_normal((few.shape[1], size)) + 0.3 * rng.standard_normal((rows, size))).astype(
        np.float32
    )


def rounded(x: Array, weight: Array, scale: float, form: Quantized) -> Array:
    moments = (x.T.astype(np.float64) @ x) / len(x)
    scales = np.full(weight.shape, scale, np.float32)
    found: Array = round_adaptively(weight[None], scales[None], moments[None], form.rounded)[0] * scale
    return found


def output_error(x: Array, weight: Array, found: Array) -> Array:
    error: Array = np.square(x @ (found - weight).T).sum(axis=0)
    return error


@pytest.mark.parametrize(("form", "scale"), [(INT8, 0.01), (INT4, 0.1)], ids=lambda v: getattr(v, "name", ""))
def test_the_output_is_off_by_less_than_half_of_what_the_nearest_values_give(form: Quantized, scale: float) -> None:
    x, weight = correlated(512, 64), (0.2 * rng.standard_normal((48, 64))).astype(np.float32)
    nearest = form.rounded(weight / np.float32(scale)) * np.float32(scale)
    before, after = output_error(x, weight, nearest), output_error(x, weight, rounded(x, weight, scale, form))
    assert (after <= before * 1.001).all()
    assert after.sum() < 0.5 * before.sum()


def test_fp8_gains_too() -> None:
    x, weight = correlated(512, 64), (0.2 * rng.standard_normal((48, 64))).astype(np.float32)
    nearest = FP8.rounded(weight / np.float32(0.002)) * np.float32(0.002)
    before, after = output_error(x, weight, nearest), output_error(x, weight, rounded(x, weight, 0.002, FP8))
    assert after.sum() < 0.6 * before.sum()


def test_it_is_close_to_the_best_of_all_choices_of_up_and_down() -> None:
    x, weight = correlated(256, 8), (0.3 * rng.standard_normal((12, 8))).astype(np.float32)
    scale = np.float32(0.1)
    nearest = np.rint(weight / scale) * scale
    best = np.full(len(weight), np.inf)
    for choice in product((0, 1), repeat=8):
        best = np.minimum(best, output_error(x, weight, (np.floor(weight / scale) + choice) * scale))
    found = output_error(x, weight, rounded(x, weight, 0.1, INT4))
    plain = output_error(x, weight, nearest)
    gained = (plain - found).sum() / (plain - best).sum()
    assert gained > 0.7


def test_inputs_that_never_vary_and_dead_ones_are_no_trouble() -> None:
    x = correlated(64, 16)
    x[:, 3] = 0.0
    x[:, 5] = x[:, 4]
    weight = (0.2 * rng.standard_normal((4, 16))).astype(np.float32)
    found = rounded(x, weight, 0.05, INT4)
    assert np.isfinite(found).all()
    assert (np.abs(found) <= 8 * 0.0501).all()
    nearest = np.clip(np.rint(weight / np.float32(0.05)), -8, 7) * 0.05
    np.testing.assert_allclose(rounded(np.zeros_like(x), weight, 0.05, INT4), nearest, rtol=1e-6)


def test_the_answer_is_the_same_every_time() -> None:
    x, weight = correlated(256, 96), (0.2 * rng.standard_normal((32, 96))).astype(np.float32)
    np.testing.assert_array_equal(rounded(x, weight, 0.02, INT8), rounded(x, weight, 0.02, INT8))


ROWS = {"x": 0.5 + correlated(256, 64)}
PICTURES = {"x": 0.5 + correlated(4 * 64, 16).reshape(4, 8, 8, 16).transpose(0, 3, 1, 2)}


@pytest.mark.parametrize(
    ("body", "weight", "feeds", "share"),
    [
        ("(float[b, 64] x) => (float[b, 24] y) { y = Gemm(x, w, c) }", (64, 24), ROWS, 0.6),
        ("(float[b, 64] x) => (float[b, 24] y) { y = Gemm <transB = 1> (x, w, c) }", (24, 64), ROWS, 0.6),
        ("(float[b, 64] x) => (float[b, 24] y) { h = MatMul(x, w)  y = Add(h, c) }", (64, 24), ROWS, 0.6),
        ("(float[b, 16, 8, 8] x) => (float[b, 24, h, k] y) { y = Conv(x, w, c) }", (24, 16, 1, 1), PICTURES, 0.6),
        ("(float[b, 16, 8, 8] x) => (float[b, 24, h, k] y) { y = Conv(x, w, c) }", (24, 16, 3, 3), PICTURES, 0.85),
        (
            "(float[b, 16, 8, 8] x) => (float[b, 24, h, k] y) { y = Conv <group = 2> (x, w, c) }",
            (24, 8, 3, 3),
            PICTURES,
            0.9,
        ),
    ],
    ids=["gemm", "transposed", "matmul", "pointwise", "window", "grouped"],
)
def test_a_layer_of_a_graph_gets_closer(
    body: str, weight: tuple[int, ...], feeds: dict[str, Array], share: float
) -> None:
    w, c = (0.2 * rng.standard_normal(weight)).astype(np.float32), rng.standard_normal(24).astype(np.float32)

    def error(rounding: str) -> float:
        model = graph(f"g {body}", w=w, c=c)
        reference, seen = outputs(model, feeds)[0], statistics(model, [feeds])
        settings: dict[str, Any] = {
            "precision": "int8",
            "compute": "fp32",
            "activations": False,
            "per_channel": False,
            "placement": {"min_channels": 1},
            "weights": {"rounding": rounding},
        }
        outcome = apply(model, Recipe.model_validate(settings), seen.amax(), seen)
        assert [len(work.done) for work in outcome.weights] == ([1] if rounding == "adaptive" else [])
        return relative(reference, outputs(model, feeds)[0])

    assert error("adaptive") < share * error("nearest")


def test_without_products_it_says_so_and_rounds_to_the_nearest() -> None:
    model = graph("g (float[b, 64] x) => (float[b, 24] y) { y = MatMul(x, w) }", w=np.ones((64, 24), np.float32))
    settings = {"precision": "int8", "placement": {"min_channels": 1}, "weights": {"rounding": "adaptive"}}
    from aot.statistics import Level

    seen = statistics(model, [ROWS], Level.CHANNELS)
    outcome = apply(model, Recipe.model_validate(settings), seen.amax(), seen)
    assert outcome.weights[0].left == {"y": "the products of its input's channels were not collected"}
