"""The percentile of magnitudes, against numpy's on the values themselves."""

from __future__ import annotations

import numpy as np
import pytest

from aot.calibrators.percentile import Percentile
from aot.config import Recipe


def amax(values: np.ndarray, percentile: float) -> float:
    calibrator = Percentile(percentile=percentile)
    calibrator.observe("x", values.astype(np.float32))
    return calibrator.ranges()["x"]


@pytest.mark.parametrize("percentile", [50.0, 90.0, 99.0, 99.9, 99.99])
def test_as_many_values_are_kept_as_the_percentile_says(percentile: float) -> None:
    values = np.random.default_rng(1).standard_t(3, 200_000)
    assert amax(values, percentile) == pytest.approx(np.percentile(np.abs(values), percentile), rel=0.008)


def test_a_hundred_clips_nothing() -> None:
    values = np.random.default_rng(2).normal(size=1000).astype(np.float32)
    assert amax(values, 100) == np.abs(values).max()


def test_zeros_count() -> None:
    values = np.concatenate([np.zeros(990), np.full(10, 7.0)])
    assert amax(values, 98) == 0
    assert amax(values, 99.5) == pytest.approx(7, rel=0.008)


def test_the_recipe_says_which() -> None:
    assert Percentile.of(Recipe(precision="fp8", calibrator="percentile", percentile=97.5)).percentile == 97.5
