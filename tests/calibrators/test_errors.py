"""`mse` and `output_error`, against quantizing the values themselves with every range of a fine grid."""

from __future__ import annotations

import numpy as np
import pytest

from aot.calibrator import Calibrator, get
from aot.calibrators._error import clipped, coarse, errors
from aot.histogram import Histogram, edges
from aot.precision.formats import FP8, INT8, Quantized
from aot.statistics import Reading

FORMS = pytest.mark.parametrize("form", [INT8, FP8], ids=lambda form: form.name)
DRAWS = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "heavy tails": lambda rng, shape: rng.standard_t(2.5, shape),
    "relu": lambda rng, shape: np.maximum(rng.normal(size=shape), 0),
    "softmax": lambda rng, shape: rng.dirichlet(np.full(shape[-1], 0.1), shape[0]),
}


def draw(kind: str, shape: tuple[int, ...] = (1500, 32)) -> np.ndarray:
    return np.asarray(DRAWS[kind](np.random.default_rng(5), shape), np.float32)


def quantized(x: np.ndarray, amax: float, form: Quantized) -> np.ndarray:
    scaled = np.clip(x.astype(np.float64) * (form.top / amax), -form.top, form.top)
    whole: np.ndarray = np.rint(scaled) if form is INT8 else scaled.astype(form.numpy).astype(np.float64)
    return np.asarray(whole * (amax / form.top))


def candidates(x: np.ndarray) -> np.ndarray:
    return np.abs(x).max() * 2.0 ** -np.arange(0, 8, 0.05)


def chosen(name: str, x: np.ndarray, form: Quantized, reading: Reading | None = None) -> float:
    calibrator: Calibrator = get(name)(form.name)
    calibrator.observe("x", x, reading)
    return calibrator.ranges()["x"]


@FORMS
@pytest.mark.parametrize("kind", DRAWS)
def test_the_error_of_a_histogram_is_that_of_its_values(form: Quantized, kind: str) -> None:
    x = draw(kind)
    histogram = Histogram()
    histogram.add(x)
    counts = histogram.counts[1 : len(edges())].astype(np.float64)
    ranges = np.abs(x).max() / np.array([1.0, 1.7, 4.0])
    expected = [np.square(x - quantized(x, amax, form)).sum() for amax in ranges]
    last = histogram.window[1]
    got = errors(edges()[1 : last + 1], counts[: last - 1], ranges, form)
    np.testing.assert_allclose(got, expected, rtol=0.05)


@FORMS
def test_what_a_clip_leaves_at_the_top_counts_at_its_place(form: Quantized) -> None:
    """Thousands of values that are exactly 6, where a bin begins: one of no width."""
    x = np.minimum(draw("normal") * 4, np.float32(6))
    histogram = Histogram()
    histogram.add(x)
    bounds, counts = coarse(histogram, 6.0)
    ranges = np.linspace(3, 6, 7)
    expected = [np.square(x - quantized(x, amax, form)).sum() for amax in ranges]
    np.testing.assert_allclose(errors(bounds, counts, ranges, form), expected, rtol=0.02)


@FORMS
@pytest.mark.parametrize("kind", DRAWS)
def test_what_a_range_cuts_off_is_part_of_its_error(form: Quantized, kind: str) -> None:
    """And for narrow ranges nearly all of it, so that most of them need not be tried."""
    x = draw(kind)
    histogram = Histogram()
    histogram.add(x)
    largest = float(np.abs(x).max())
    bounds, counts = coarse(histogram, largest)
    ranges = largest * 2.0 ** -np.arange(0, 10, 0.125)
    part, whole = clipped(bounds, counts, ranges), errors(bounds, counts, ranges, form)
    assert np.all(part <= whole * (1 + 1e-9))
    np.testing.assert_allclose(part[-8:], whole[-8:], rtol=0.01)
    np.testing.assert_allclose(part[0], 0, atol=1e-9 * whole[-1])


@FORMS
@pytest.mark.parametrize("kind", DRAWS)
def test_mse_finds_a_range_as_good_as_the_best_of_a_fine_grid(form: Quantized, kind: str) -> None:
    x = draw(kind)

    def error(amax: float) -> float:
        return float(np.square(x - quantized(x, amax, form)).sum())

    best = min(map(error, candidates(x)))
    assert error(chosen("mse", x, form)) <= 1.02 * best


@FORMS
def test_output_error_finds_the_range_whose_layers_err_least(form: Quantized) -> None:
    """Two layers read the tensor. One channel holds outliers, and neither has much weight for it."""
    rng = np.random.default_rng(6)
    x = draw("normal", (1500, 24))
    x[:, 3] *= 40
    weights = [rng.normal(size=(24, 48)), rng.normal(size=(24, 16))]
    for weight in weights:
        weight[3] *= 0.002
    norm = sum(np.square(weight).sum(axis=1) for weight in weights)
    gain = np.maximum(np.rint(norm / norm.max() * (1 << 20)), 1).astype(np.int64)

    def error(amax: float) -> float:
        wrong = x - quantized(x, amax, form)
        return sum(float(np.square(wrong @ weight).sum()) for weight in weights)

    mine = chosen("output_error", x, form, Reading(1, gain))
    assert error(mine) <= 1.05 * min(map(error, candidates(x)))
    if form is INT8:  # FP8's grid forgives a wide range
        assert error(mine) < 0.2 * error(chosen("mse", x, form))


@FORMS
def test_output_error_is_mse_where_no_channel_has_a_weight(form: Quantized) -> None:
    x = draw("heavy tails")
    assert chosen("output_error", x, form) == chosen("mse", x, form)


@FORMS
@pytest.mark.parametrize("name", ["mse", "output_error"])
def test_scaling_the_values_scales_the_range(form: Quantized, name: str) -> None:
    x = draw("normal")
    for factor in (2.0**-20, 2.0**13):
        assert chosen(name, x * np.float32(factor), form) == pytest.approx(factor * chosen(name, x, form), rel=1e-6)


@pytest.mark.parametrize("name", ["mse", "output_error", "entropy", "percentile"])
@FORMS
def test_no_range_is_wider_than_what_was_seen(form: Quantized, name: str) -> None:
    for x in (np.full(7, 3.0, np.float32), np.zeros(5, np.float32), np.array([1e-42, 5e4], np.float32)):
        assert 0 <= chosen(name, x, form) <= np.abs(x).max()
