"""The range of smallest KL divergence, against the method written out bin by bin."""

from __future__ import annotations

import numpy as np
import pytest

from aot.calibrators.entropy import BINS, FIRST, Entropy, divergences, levels
from aot.precision.formats import FP8, INT8, Quantized


def written_out(counts: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """KL(P || Q) of every range: Migacz's loop, with Q spread over the bins that are not empty."""
    found = []
    for size in range(FIRST, len(counts) + 1):
        p = counts[:size].astype(np.float64).copy()
        p[-1] += counts[size:].sum()
        level = np.searchsorted(size * starts, np.arange(size) + 1e-9, side="right") - 1
        level = np.minimum(level, len(starts) - 2)
        filled = counts[:size] > 0
        mass = np.bincount(level, counts[:size] * filled, len(starts))
        bins = np.bincount(level, filled, len(starts))
        q = np.where(filled, (mass / np.maximum(bins, 1))[level], 0.0)
        inside, beyond = counts[:size], counts[size:].sum()
        crossed = np.sum(inside[filled] * np.log(q[filled])) + beyond * np.log(max(q[-1], 0.5))
        total = p.sum()
        found.append(float((np.sum(p[p > 0] * np.log(p[p > 0] / total)) - crossed) / total + np.log(q.sum())))
    return np.array(found)


@pytest.mark.parametrize("form", [INT8, FP8], ids=lambda form: form.name)
@pytest.mark.parametrize("empty", [0.0, 0.3])
def test_all_ranges_at_once_are_what_the_loop_gives(form: Quantized, empty: float) -> None:
    rng = np.random.default_rng(0)
    counts = rng.poisson(2000 * np.exp(-np.arange(400) / 50)) + 1
    counts[rng.random(400) < empty] = 0
    got, expected = divergences(counts.astype(np.float64), form), written_out(counts, levels(form))
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("draw", ["normal", "laplace", "relu"])
def test_the_range_is_as_good_as_that_of_the_values_themselves(draw: str) -> None:
    rng = np.random.default_rng(3)
    values = {"normal": rng.normal, "laplace": rng.laplace, "relu": rng.normal}[draw](size=400_000).astype(np.float32)
    values = np.maximum(values, 0) if draw == "relu" else values
    largest = float(np.abs(values).max())
    calibrator = Entropy()
    calibrator.observe("x", values)
    chosen = calibrator.ranges()["x"]
    counts, _ = np.histogram(np.abs(values[values != 0]), BINS, (0, largest))
    exact = written_out(counts, levels(INT8))
    mine = exact[round(chosen / largest * BINS) - FIRST]
    assert mine <= 1.15 * exact.min() + 1e-4
    assert chosen < largest


def test_a_lone_outlier_is_clipped() -> None:
    values = np.random.default_rng(4).normal(size=100_000).astype(np.float32)
    values[7] = 100
    calibrator = Entropy()
    calibrator.observe("x", values)
    assert calibrator.ranges()["x"] < 12


def test_nothing_but_zeros_has_no_range() -> None:
    calibrator = Entropy()
    calibrator.observe("x", np.zeros(100, np.float32))
    assert calibrator.ranges() == {"x": 0.0}
