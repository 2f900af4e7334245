"""What rounding does to activations: the range where FP8 is closest, and the mean error of every channel."""

from __future__ import annotations

import numpy as np
import pytest

from aot.config import Recipe
from aot.precision import apply
from aot.precision.activations import fitted
from aot.precision.formats import FP8, INT8, Quantized
from aot.precision.weights.activations import mean_errors, resting
from aot.statistics import Level, Reading, Statistics
from tests.precision.graphs import Array, graph, value
from tests.precision.weights.observing import outputs, statistics

rng = np.random.default_rng(5)


def observed(array: Array, axis: int = 1) -> Statistics:
    found = Statistics()
    found.observe("x", array, Level.CHANNELS, Reading(axis, np.ones(array.shape[axis], np.int64)))
    return found


def rounded(array: Array, scale: float, form: Quantized) -> Array:
    found: Array = form.rounded(array / np.float32(scale)) * np.float32(scale)
    return found


def squared(array: Array, amax: float, form: Quantized) -> float:
    return float(np.square(rounded(array, amax / form.top, form) - array, dtype=np.float64).sum())


def test_a_range_of_fp8_is_widened_to_where_its_steps_fit_and_never_clips_more() -> None:
    """Values at 0.95 of the largest: FP8 has 416 and 448 of 448 there, and something closer in a wider range."""
    array = np.concatenate([np.full(500, 0.95), rng.uniform(0, 1, 100)]).astype(np.float32)[:, None]
    amax = {"x": float(array.max())}
    wide = fitted(amax, observed(array), FP8)["x"]
    assert amax["x"] <= wide < 2 * amax["x"]
    assert squared(array, wide, FP8) < 0.2 * squared(array, amax["x"], FP8)
    tried = [squared(array, amax["x"] * 2 ** (k / 16), FP8) for k in range(16)]
    assert squared(array, wide, FP8) == pytest.approx(min(tried), rel=1e-6)


def test_ranges_of_whole_numbers_and_of_what_has_no_histogram_stay() -> None:
    seen = observed(rng.standard_normal((64, 8)).astype(np.float32))
    assert fitted({"x": 3.0}, seen, INT8) == {"x": 3.0}
    bare = Statistics()
    bare.observe("x", np.ones((4, 4), np.float32))
    assert fitted({"x": 1.0, "unseen": 2.0}, bare, FP8) == {"x": 1.0, "unseen": 2.0}


@pytest.mark.parametrize("form", [FP8, INT8], ids=["fp8", "int8"])
def test_the_mean_error_of_channels_that_rest_is_found_from_their_histograms(form: Quantized) -> None:
    """As behind a depthwise convolution and a Relu: most values of a channel are its bias."""
    bias = rng.uniform(0.1, 2, 32)
    moving = rng.random((4, 32, 16, 16)) < 0.3
    array = np.where(moving, rng.exponential(1, (4, 32, 16, 16)), bias[:, None, None]).astype(np.float32)
    scale = float(array.max()) / form.top
    wanted = (rounded(array, scale, form) - array).mean(axis=(0, 2, 3), dtype=np.float64)
    found = mean_errors(observed(array)["x"], bias, scale, form)
    assert np.linalg.norm(found - wanted) < 0.25 * np.linalg.norm(wanted)


def test_a_bias_that_is_no_resting_value_changes_nothing() -> None:
    """The channel rests elsewhere in the same bin, which its mean gives away."""
    array = np.full((512, 4), 1.2, np.float32)
    array[::8] = rng.exponential(1, (64, 4))
    tensor, scale = observed(array)["x"], float(array.max()) / FP8.top
    elsewhere, none = (mean_errors(tensor, np.full(4, rest), scale, FP8) for rest in (1.01, 0.0))
    np.testing.assert_array_equal(elsewhere, none)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("(float[b, 4] x) => (float[b, 4] r) { h = Gemm(x, w, c)  r = Relu(h) }", [0.0, 0.5, 2.0, 8.0]),
        ("(float[b, 4] x) => (float[b, 4] r) { h = Gemm(x, w, c)  r = Clip(h, low, high) }", [0.0, 0.5, 2.0, 6.0]),
        ("(float[b, 4] x) => (float[b, 4] r) { h = Gemm(x, w, c)  r = Clip(h, below, high) }", None),
        ("(float[b, 4] x) => (float[b, 4] r) { r = Gemm(x, w, c) }", None),
        ("(float[b, 4] x) => (float[b, 4] r) { h = Gemm(x, w)  r = Relu(h) }", None),
        ("(float[b, 4] x) => (float[b, 4] r) { r = Relu(x) }", None),
    ],
)
def test_a_channel_rests_at_its_bias(body: str, expected: list[float] | None) -> None:
    constants = {"w": np.eye(4), "c": np.array([-1.0, 0.5, 2.0, 8.0])}
    constants |= {name: np.array(bound) for name, bound in {"below": -1.0, "low": 0.0, "high": 6.0}.items()}
    made = graph(f"g {body}", 20, **{name: array.astype(np.float32) for name, array in constants.items()})
    found = resting(value(made, "r"), 4)
    assert (None if found is None else found.tolist()) == expected


@pytest.mark.parametrize("precision", ["fp8", "int8"])
def test_bias_correction_takes_the_mean_error_of_a_rounded_activation_out(precision: str) -> None:
    """A pointwise convolution reads what a depthwise one behind sparse values made."""
    body = """g (float[b, 32, 8, 8] x) => (float[b, 24, 8, 8] y)
    { h = Conv <group = 32> (x, d, c)  r = Relu(h)  y = Conv(r, w, e) }"""
    constants = {"d": rng.uniform(0.5, 2, (32, 1, 1, 1)), "c": rng.uniform(0.1, 1, 32), "e": np.zeros(24)}
    constants |= {"w": rng.standard_normal((24, 32, 1, 1))}
    weights = {name: array.astype(np.float32) for name, array in constants.items()}
    sparse = rng.exponential(1, (8, 32, 8, 8)) * (rng.random((8, 32, 8, 8)) < 0.3)
    feeds = {"x": sparse.astype(np.float32)}

    def off(correct: bool) -> float:
        made = graph(body, 20, **weights)
        wanted, seen = outputs(made, feeds)[0], statistics(made, [feeds])
        settings = {"precision": precision, "compute": "fp32", "weights": {"bias_correction": correct}}
        settings["placement"] = {"depthwise": False, "slow": True, "min_channels": 1}
        apply(made, Recipe.model_validate(settings), seen.amax(), seen)
        shift = (outputs(made, feeds)[0] - wanted).mean(axis=(0, 2, 3), dtype=np.float64)
        return float(np.linalg.norm(shift))

    assert off(correct=True) < 0.35 * off(correct=False)
